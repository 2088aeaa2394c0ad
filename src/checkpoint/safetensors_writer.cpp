#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/small_floats.h"
#include "checkpoint/safetensors.h"

namespace ringtrain {
namespace {

std::uint64_t element_bytes(const TensorToWrite& tensor) {
  if (std::holds_alternative<std::span<const std::int64_t>>(tensor.values)) return 8;
  if (std::holds_alternative<std::span<const std::uint8_t>>(tensor.values)) return 1;
  return tensor.dtype == "F32" ? 4 : 2;
}

std::size_t elements(const TensorToWrite& tensor) {
  return std::visit([](const auto& values) { return values.size(); }, tensor.values);
}

class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) fail(errno);
  }
  ~Output() {
    if (file_ >= 0) ::close(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const void* data, std::size_t size) {
    if (const int reason = write_fully(file_, data, size); reason != 0) fail(reason);
  }
  void close() {
    if (::close(std::exchange(file_, -1)) != 0) fail(errno);
  }

 private:
  [[noreturn]] void fail(int reason) const {
    throw Error(cat(path_, ": cannot write: ", std::strerror(reason)), advice_for_writing(reason, path_));
  }
  std::string path_;
  int file_ = -1;
};

void write_as_16_bits(Output& out, const TensorToWrite& tensor, std::span<const float> values) {
  const bool bf16 = tensor.dtype == "BF16";
  std::vector<std::uint16_t> block;
  for (std::size_t begin = 0; begin < values.size(); begin += block.size()) {
    block.resize(std::min<std::size_t>(std::size_t{1} << 18, values.size() - begin));
    for (std::size_t i = 0; i < block.size(); ++i) {
      const float value = values[begin + i];
      block[i] = bf16 ? to_bf16(value) : to_fp16(value);
      if (std::isfinite(value) && !std::isfinite(bf16 ? from_bf16(block[i]) : from_fp16(block[i])))
        throw Error(cat("tensor '", tensor.name, "' has the value ", value, ", too large for ", tensor.dtype),
                    "write it as bf16 or fp32");
    }
    out.write(block.data(), block.size() * sizeof block[0]);
  }
}

std::string header_of(const std::map<std::string, std::string>& metadata, const std::vector<TensorToWrite>& tensors) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& t : tensors) {
    const std::uint64_t end = offset + elements(t) * element_bytes(t);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the tensors are aligned
  return text;
}

void write_file(const std::string& path, const std::string& header, const std::vector<TensorToWrite>& tensors) {
  Output out(path);
  const std::uint64_t length = header.size();
  out.write(&length, sizeof length);
  out.write(header.data(), header.size());
  for (const TensorToWrite& t : tensors) {
    const auto* floats = std::get_if<std::span<const float>>(&t.values);
    if (floats != nullptr && t.dtype != "F32")
      write_as_16_bits(out, t, *floats);
    else
      std::visit([&](const auto& values) { out.write(values.data(), values.size_bytes()); }, t.values);
  }
  out.close();
}

}  // namespace

void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::vector<TensorToWrite> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return std::pair(element_bytes(b), std::string_view(a.name)) <
           std::pair(element_bytes(a), std::string_view(b.name));
  });
  const std::string temporary = path + ".tmp";
  publish_written(temporary, path, [&] { write_file(temporary, header_of(metadata, tensors), tensors); });
}

}  // namespace ringtrain
