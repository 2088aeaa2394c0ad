// The safetensors format. A file has 8 bytes with the length of the header (little-endian), a JSON header with name,
// dtype, shape and offsets, and then the tensors one after the other, row-major. PyTorch, JAX and others read it. It
// contains no code that could run. https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/output_file.h"

namespace ringtrain {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::int64_t count = 0;              // number of elements
  std::uint64_t begin = 0, bytes = 0;  // position and size in the file
};

class SafetensorsFile {
 public:
  // Reads and checks the header. Every tensor's bytes must lie in the file without gap or overlap, and their number
  // must fit shape and dtype. Throws Error with the names of the file and the tensor.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their bytes
  // Reads F32, F16, BF16 or F64 values into `values` [entry.count], block by block, so that no second copy of the
  // tensor is in memory.
  void read(const SafetensorsEntry& entry, std::span<float> values) const;

 private:
  void read_bytes(std::uint64_t offset, std::span<std::uint8_t> bytes, const std::string& what) const;
  std::string path_;
  int file_ = -1;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> entries_;
};

// A kind of safetensors file, for base/output_file.h. `is_one` sees the headers of whole files only.
OutputKind safetensors_output(const std::string& name, std::function<bool(const SafetensorsFile& file)> is_one);

inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;  // the limit of the format's own library

struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32, F16 or BF16 for floats; I64 and U8 for integers
  std::vector<std::int64_t> shape;
  std::variant<std::span<const float>, std::span<const std::int64_t>, std::span<const std::uint8_t>> values;
};

// Writes by write_output(). The file has exactly the bytes that the format's own library
// writes: wide types first, then by name. Throws Error, and leaves `path` unchanged, if the disk is full or if a finite
// value is too large for F16 or BF16.
void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::vector<TensorToWrite> tensors, const OutputKind& kind = any_file());

}  // namespace ringtrain
