#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/rounding.h"
#include "base/small_floats.h"
#include "base/utf8.h"
#include "checkpoint/foreign_weights.h"

namespace ringtrain {
namespace {

constexpr const char* copy_again_hint = "copy the file again, or write it again";

// Returns the bytes of one element; 0 for a type that the format does not have.
std::uint64_t bytes_of(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}, {"C64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

// Throws Error if a name occurs twice; Json alone would keep the last one.
Json parse_header(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // the keys of each open object
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Error(cat(path, ": the header has ", shown(value.get<std::string>()), " twice"), copy_again_hint);
    return true;
  };
  try {
    Json header = Json::parse(text, watch);
    if (header.is_object()) return header;
  } catch (const Json::exception& error) {
    throw Error(cat(path, ": the header is no JSON: ", cut_to(said_by(error), 200)), copy_again_hint);
  }
  throw Error(cat(path, ": the header is JSON, but no object"), copy_again_hint);
}

std::map<std::string, std::string> metadata_of(const std::string& path, const Json& header) {
  std::map<std::string, std::string> metadata;
  if (!header.contains("__metadata__")) return metadata;
  const Json& entries = header["__metadata__"];
  if (!entries.is_object()) throw Error(cat(path, ": __metadata__ is not an object"), copy_again_hint);
  for (const auto& [key, value] : entries.items()) {
    if (!value.is_string()) throw Error(cat(path, ": __metadata__ ", shown(key), " is not text"), copy_again_hint);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

bool is_list_of_counts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& v) {
           return v.is_number_unsigned() && v.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
         });
}

// `data_begin` is the position in the file where the offsets begin to count.
SafetensorsEntry entry_of(const std::string& path, const std::string& name, const Json& value, std::uint64_t data_begin,
                          std::uint64_t file_bytes) {
  const std::string who = cat(path, ": tensor ", shown(name));
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string())
    throw Error(cat(who, ": no dtype in the header"), copy_again_hint);
  if (!value.contains("shape") || !is_list_of_counts(value["shape"]))
    throw Error(cat(who, ": its shape is not a list of sizes"), copy_again_hint);
  if (!value.contains("data_offsets") || !is_list_of_counts(value["data_offsets"]) || value["data_offsets"].size() != 2)
    throw Error(cat(who, ": its data_offsets are not two numbers"), copy_again_hint);

  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = value["dtype"].get<std::string>();
  entry.shape = value["shape"].get<std::vector<std::int64_t>>();
  const std::uint64_t size = bytes_of(entry.dtype);
  if (size == 0) throw Error(cat(who, ": unknown dtype ", shown(entry.dtype)), "write the tensor as F32");
  std::uint64_t bytes = size;
  bool fits = true;
  for (const std::int64_t extent : entry.shape)
    fits = !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) && fits;
  const auto begin = value["data_offsets"][0].get<std::uint64_t>(), end = value["data_offsets"][1].get<std::uint64_t>();
  if (begin > end) throw Error(cat(who, ": begins at byte ", begin, " but ends at ", end), copy_again_hint);
  if (!fits || bytes != end - begin)
    throw Error(cat(who, ": has ", end - begin, " bytes; its shape ", cut_to(value["shape"].dump(), 200), " of ",
                    entry.dtype, fits ? cat(" needs ", bytes) : " is larger than any file"),
                copy_again_hint);
  if (end > file_bytes - data_begin)
    throw Error(cat(who, ": ends at byte ", data_begin + end, " of a file of ", file_bytes,
                    ": the file is cut off or its header is wrong"),
                copy_again_hint);
  entry.begin = data_begin + begin;
  entry.bytes = bytes;
  entry.count = static_cast<std::int64_t>(bytes / size);
  return entry;
}

// The format demands that the tensors cover all bytes, each byte once.
void check_coverage(const std::string& path, const std::vector<SafetensorsEntry>& entries, std::uint64_t data_begin,
                    std::uint64_t file_bytes) {
  std::uint64_t end = data_begin;
  const SafetensorsEntry* last = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < end)
      throw Error(cat(path, ": tensor ", shown(entry.name), " overlaps ", shown(last->name)), copy_again_hint);
    if (entry.begin > end)
      throw Error(
          cat(path, ": ", entry.begin - end, " bytes before tensor ", shown(entry.name), " belong to no tensor"),
          copy_again_hint);
    end = entry.begin + entry.bytes;
    last = &entry;
  }
  if (end != file_bytes)
    throw Error(cat(path, ": ", file_bytes - end, " bytes at the end belong to no tensor"), copy_again_hint);
}

template <class Stored, class Convert>
void convert_block(const std::vector<std::uint8_t>& from, std::span<float> to, const Convert& convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, from.data() + i * sizeof stored, sizeof stored);
    to[i] = convert(stored);
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not wait at a named pipe
  if (file_ < 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  try {
    struct stat status {};
    if (::fstat(file_, &status) != 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
    if (!S_ISREG(status.st_mode)) throw Error(cat(path, ": is not a regular file"), "give a .safetensors file");
    const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
    const auto text_at = [&](std::uint64_t offset, std::uint64_t size, const char* what) {
      std::string text(size, '\0');
      read_bytes(offset, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()}, what);
      return text;
    };
    const std::string start = text_at(0, std::min<std::uint64_t>(8, file_bytes), "the header's length");
    const std::uint64_t at_begin = std::min<std::uint64_t>(64 << 10, file_bytes);
    const std::uint64_t at_end = std::min<std::uint64_t>(1 << 20, file_bytes);
    refuse_other_formats(path, text_at(0, at_begin, "the file"), text_at(file_bytes - at_end, at_end, "the file"));
    if (file_bytes < 8)
      throw Error(cat(path, ": has ", file_bytes, " bytes, too few for safetensors"), copy_again_hint);
    std::uint64_t length = 0;
    std::memcpy(&length, start.data(), sizeof length);
    if (length > longest_safetensors_header)
      throw Error(cat(path, ": says that its header has ", length, " bytes, more than the ", longest_safetensors_header,
                      " that the format allows: no safetensors file"),
                  copy_again_hint);
    if (length > file_bytes - 8)
      throw Error(cat(path, ": says that its header has ", length, " bytes, but the file has ", file_bytes,
                      ": it is cut off, or no safetensors file"),
                  copy_again_hint);
    const Json header = parse_header(path, text_at(8, length, "the header"));
    metadata_ = metadata_of(path, header);
    for (const auto& [name, value] : header.items())
      if (name != "__metadata__") entries_.push_back(entry_of(path, name, value, 8 + length, file_bytes));
    std::sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
    });
    check_coverage(path, entries_, 8 + length, file_bytes);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::close(file_);
}

void SafetensorsFile::read_bytes(std::uint64_t offset, std::span<std::uint8_t> bytes, const std::string& what) const {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::pread(file_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(cat(path_, ": cannot read ", what, ": ", std::strerror(errno)));
    if (count == 0) throw Error(cat(path_, ": ends within ", what), copy_again_hint);
    done += static_cast<std::size_t>(count);
  }
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::span<float> values) const {
  const std::string what = cat("tensor ", shown(entry.name));
  if (std::ssize(values) != entry.count)
    throw Error(cat(path_, ": ", what, " has ", entry.count, " values, expected ", values.size()));
  if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16" && entry.dtype != "F64")
    throw Error(cat(path_, ": ", what, " is of type ", entry.dtype, ", expected F32, F16, BF16 or F64"),
                "write the tensor as F32");
  if (entry.dtype == "F32")
    return read_bytes(entry.begin, {reinterpret_cast<std::uint8_t*>(values.data()), values.size_bytes()}, what);
  const std::uint64_t size = bytes_of(entry.dtype);
  constexpr std::size_t block = std::size_t{1} << 18;
  std::vector<std::uint8_t> bytes(std::min(block, values.size()) * size);
  for (std::size_t first = 0; first < values.size(); first += block) {
    const std::span<float> part = values.subspan(first, std::min(block, values.size() - first));
    bytes.resize(part.size() * size);
    read_bytes(entry.begin + first * size, bytes, what);
    if (entry.dtype == "F64")
      convert_block<double>(bytes, part, [](double v) { return static_cast<float>(v); });
    else if (entry.dtype == "F16")
      convert_block<std::uint16_t>(bytes, part, from_fp16);
    else
      convert_block<std::uint16_t>(bytes, part, from_bf16);
  }
}

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
    file_ = open_for_writing(path);
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
  std::string text = json_text(header);
  text.resize(round_up(text.size(), 8), ' ');  // so that the tensors are aligned
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

OutputKind safetensors_output(const std::string& name, std::function<bool(const SafetensorsFile& file)> is_one) {
  return {name, [is_one = std::move(is_one)](const std::string& path) {
            try {
              return is_one(SafetensorsFile(path));
            } catch (const Error&) {
              return false;
            }
          }};
}

void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::vector<TensorToWrite> tensors, const OutputKind& kind) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return std::pair(element_bytes(b), std::string_view(a.name)) <
           std::pair(element_bytes(a), std::string_view(b.name));
  });
  write_output(path, kind, [&](const std::string& to) { write_file(to, header_of(metadata, tensors), tensors); });
}

}  // namespace ringtrain
