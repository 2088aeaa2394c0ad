// The safetensors format: 8 bytes with the header's length (little-endian), a JSON header with name, dtype, shape and
// offsets, then the tensors one behind another, row-major. PyTorch, JAX and others read it; nothing in it can run.
// https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace ringtrain {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::int64_t count = 0;              // elements
  std::uint64_t begin = 0, bytes = 0;  // in the file
};

class SafetensorsFile {
 public:
  // Reads and checks the header: every tensor's bytes lie in the file, without gap or overlap, and are shape x dtype.
  // Throws Error naming file and tensor.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their bytes
  // From F32, F16, BF16 or F64 into `values` [entry.count], block by block: no second copy of a tensor is made.
  void read(const SafetensorsEntry& entry, std::span<float> values) const;

 private:
  void read_bytes(std::uint64_t offset, std::span<std::uint8_t> bytes, const std::string& what) const;
  std::string path_;
  int file_ = -1;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> entries_;
};

struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32, F16 or BF16 of floats; I64 and U8 of their own kind
  std::vector<std::int64_t> shape;
  std::variant<std::span<const float>, std::span<const std::int64_t>, std::span<const std::uint8_t>> values;
};

// Through a temporary file, sync and rename; byte for byte what the format's own library writes: wide types first, then
// by name. Throws Error, and leaves `path` as it was, when the disk is full or a finite value does not fit F16.
void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::vector<TensorToWrite> tensors);

}  // namespace ringtrain
