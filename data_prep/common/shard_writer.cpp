#include "data_prep/common/shard_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/text.h"
#include "data/shard_files.h"
#include "data_prep/common/ranks.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t crc_block_bytes = 65536;
constexpr const char* temporary_suffix = ".tmp";

std::uint64_t high_and_low(std::uint32_t high, std::uint32_t low) {
  return (std::uint64_t{high} << 32) | low;
}

}  // namespace

void ContentHash::add(std::uint64_t word) {
  const Random4 r = philox(a_, b_, word);
  a_ = high_and_low(r.v[0], r.v[1]);
  b_ = high_and_low(r.v[2], r.v[3]);
}

void ContentHash::add(std::string_view bytes) {
  add(std::uint64_t{bytes.size()});
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    add(word);
  }
}

std::string ContentHash::uuid() const {
  // The text is a UUID of RFC 9562 with version 8 (custom content) and the variant bits 10.
  const std::uint64_t a = (a_ & ~0xF000ull) | 0x8000ull, b = (b_ & ~(3ull << 62)) | (2ull << 62);
  char text[40];
  std::snprintf(text, sizeof text, "%08llx-%04llx-%04llx-%04llx-%012llx", static_cast<unsigned long long>(a >> 32),
                static_cast<unsigned long long>((a >> 16) & 0xFFFF), static_cast<unsigned long long>(a & 0xFFFF),
                static_cast<unsigned long long>(b >> 48), static_cast<unsigned long long>(b & 0xFFFFFFFFFFFFull));
  return text;
}

SplitDescription describe_split(const FileOptions& options, const std::string& split, std::int64_t total,
                                const std::string& source) {
  SplitDescription description;
  description.prefix = cat(options.out, "-", split);
  description.split = split;
  description.dataset_name = fs::path(options.out).filename().string();
  description.source = fs::path(source).filename().string();
  description.license = options.license;
  description.seed = options.seed;
  description.total = total;
  description.num_shards = std::min(options.shards, total);
  return description;
}

ShardRange shard_range(std::int64_t total, std::int64_t shards, std::int64_t shard) {
  const std::int64_t each = total / shards, longer = total % shards;
  const std::int64_t first = shard * each + std::min(shard, longer);
  return {first, first + each + (shard < longer)};
}

MadeFolders::~MadeFolders() {
  std::error_code not_empty;
  while (!made_.empty()) {
    fs::remove(made_.back(), not_empty);
    made_.pop_back();
  }
}

void MadeFolders::make(const std::string& path) {
  std::error_code failed;
  std::vector<std::string> missing;
  const auto is_missing = [&](const fs::path& folder) {  // a link that points to nothing is the user's
    return !fs::exists(fs::symlink_status(folder, failed));
  };
  for (fs::path folder = path; !folder.empty() && is_missing(folder); folder = folder.parent_path())
    missing.insert(missing.begin(), folder.string());
  made_.insert(made_.end(), missing.begin(), missing.end());
  for (const std::string& folder : missing) remove_if_stopped(folder);
  if (!path.empty()) fs::create_directories(path, failed);
  if (failed)
    throw Error(cat(path, ": cannot make the folder: ", failed.message()), advice_for_writing(failed.value(), path));
}

namespace {

bool is_control_byte(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
}

bool is_expanded(const std::string& path) {
  try {
    return expand_path(path, "") != path;
  } catch (const Error&) {
    return true;  // an unknown variable
  }
}

// Throws Error if an experiment could not name the data set, or if the file names would begin with a hyphen. `prefix`
// is that of a split: --out and "-train" or "-validation".
void expect_usable(const std::string& prefix) {
  constexpr const char* example = "for example --out data_prep/data/names";
  const std::string out = prefix.substr(0, prefix.rfind('-')), name = fs::path(prefix).filename().string();
  if (std::ranges::any_of(prefix, is_control_byte))
    throw Error(cat("--out is '", out, "', which has a line end or another control character"), example);
  if (is_expanded(prefix))
    throw Error(cat("--out is '", out, "', whose ~ or $ would be replaced where an experiment names the data"),
                example);
  if (name == "-train" || name == "-validation" || name.starts_with(".-") || name.starts_with("..-"))
    throw Error("--out ends in a folder, expected the beginning of the files' names after it", example);
  if (name.starts_with("-"))
    throw Error(cat("--out is '", out, "', and names that begin with '-' are taken for options"), example);
}

}  // namespace

OutputFiles::OutputFiles(std::vector<std::string> prefixes, bool force, bool resume) : prefixes_(std::move(prefixes)) {
  for (const std::string& prefix : prefixes_) {
    const fs::path folder = fs::path(prefix).parent_path();
    expect_usable(prefix);
    folders_.make(folder.string());
  }
  if (const std::vector<std::string> existing = matching(false); !existing.empty() && !force && !resume) {
    throw Error(cat(existing.front(), ": exists already"), "choose another --out, or overwrite it with --force");
  }
  for (const std::string& prefix : prefixes_) {
    locks_.push_back(::open((prefix + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    if (locks_.back() < 0) {
      const int reason = errno;
      unlock(true);
      const std::string path = prefix + ".lock", advice = advice_for_writing(reason, path);
      throw Error(cat(path, ": cannot write: ", std::strerror(reason)),
                  advice.empty() ? "choose an --out that can be written to" : advice);
    }
    if (::flock(locks_.back(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      unlock(false);
      throw Error(cat(prefix, ": another conversion is writing here"), "wait for it, or choose another --out");
    }
    remove_if_stopped(prefix + ".lock");
  }
  if (resume) return;
  for (const std::string& left_over : matching(true)) fs::remove(left_over);
}

void OutputFiles::expect_other_than(const std::string& input) const {
  std::error_code ignored;
  for (const std::string& existing : matching(false))
    if (fs::equivalent(existing, input, ignored))
      throw Error(cat(existing, ": is the input, and this conversion would replace it"), "choose another --out");
}

// Only the holder of a lock removes the lock's file. A lock ends with its process, so a killed process leaves no lock.
void OutputFiles::unlock(bool held) {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (locks_[i] < 0) continue;
    if (held) ::unlink((prefixes_[i] + ".lock").c_str());
    keep_if_stopped(prefixes_[i] + ".lock");
    ::close(locks_[i]);
  }
  locks_.clear();
}

OutputFiles::~OutputFiles() {
  unlock(true);
  if (committed_) return;
  std::error_code ignored;
  for (const std::string& path : finals_) fs::remove(path + temporary_suffix, ignored);
}

std::vector<std::string> OutputFiles::matching(bool temporary) const {
  std::vector<std::string> found;
  for (const std::string& prefix : prefixes_) {
    fs::path folder = fs::path(prefix).parent_path();
    if (folder.empty()) folder = ".";
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (name.ends_with(temporary_suffix) != temporary) continue;
      if (temporary) name.resize(name.size() - std::strlen(temporary_suffix));
      std::int64_t shard = 0, shards = 0;
      if (parse_shard_name(prefix, name, shard, shards)) found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string OutputFiles::add(const std::string& final_path) {
  finals_.push_back(final_path);
  remove_if_stopped(final_path + temporary_suffix);
  return final_path + temporary_suffix;
}

void OutputFiles::commit() {
  const std::vector<std::string> existing = matching(false);
  for (const std::string& path : finals_) publish_file(path + temporary_suffix, path);
  committed_ = true;
  for (const std::string& path : existing) {
    const auto is_this = [&](const std::string& final_path) { return fs::equivalent(final_path, path); };
    if (std::none_of(finals_.begin(), finals_.end(), is_this)) fs::remove(path);
  }
  for (const std::string& left_over : matching(true)) fs::remove(left_over);
}

void write_root_attributes(h5::File& file, const SplitDescription& split, const std::string& kind, std::int64_t shard,
                           std::int64_t count, std::int64_t num_classes) {
  file.write_attribute("/", "schema", std::string("ringtrain"));
  file.write_integers("/", "schema_version", {1, 0});
  file.write_attribute("/", "kind", kind);
  file.write_attribute("/", "split", split.split);
  file.write_attribute("/", "dataset_name", split.dataset_name);
  file.write_attribute("/", "dataset_uuid", split.dataset_uuid);
  file.write_attribute("/", "num_samples", count);
  file.write_attribute("/", "num_samples_total", split.total);
  file.write_attribute("/", "shard_index", shard);
  file.write_attribute("/", "num_shards", split.num_shards);
  file.write_attribute("/", "shuffle_seed", static_cast<std::int64_t>(split.seed));
  file.write_attribute("/", "num_classes", num_classes);
  file.write_attribute("/", "source", split.source);
  file.write_attribute("/", "license", split.license);
  file.write_attribute("/", "created_by", std::string("ringtrain-data"));
}

ShardWriter::ShardWriter(const SplitDescription& split, std::int64_t shard, OutputFiles& files)
    : split_(split),
      range_(shard_range(split.total, split.num_shards, shard)),
      row_bytes_(split.context_length == 0 ? 1 : split.context_length + 1),
      file_(h5::File::create(files.add(shard_path(split.prefix, shard, split.num_shards)))) {
  const std::int64_t count = range_.last - range_.first;
  write_root_attributes(file_, split, "text", shard, count, static_cast<std::int64_t>(split.vocabulary.size()));
  const bool names = split.context_length > 0;
  file_.make_array("tokens", H5T_STD_U8LE, names ? h5::Shape{count, row_bytes_} : h5::Shape{count});
  if (names) {
    file_.make_array("sample_ids", H5T_STD_U64LE, {count});
    file_.make_array("name_index", H5T_STD_U32LE, {count});
    file_.write_attribute("tokens", "pad_side", std::string("left"));
  }
  file_.write_attribute("tokens", "vocab", split.vocabulary);
  file_.write_attribute("tokens", "pad_id", split.pad_id);
  file_.write_attribute("tokens", "stop_id", split.stop_id);
  file_.write_attribute("tokens", "context_length", split.context_length);
  file_.write_attribute("tokens", "lowercase", std::int64_t{split.lowercase});
}

void ShardWriter::append_to(const std::string& name, hid_t type, std::int64_t first, std::int64_t count,
                            const void* values) {
  const h5::Guard lock;
  const h5::Handle dataset = file_.open_dataset(name);
  const h5::RowSpaces spaces = h5::select_rows(dataset.get(), file_.shape(name), {first, first + count});
  if (H5Dwrite(dataset.get(), type, spaces.memory.get(), spaces.file.get(), H5P_DEFAULT, values) < 0)
    file_.fail(cat("cannot write data set '", name, "'"));
}

void ShardWriter::append(std::span<const std::uint8_t> tokens, std::span<const std::uint64_t> sample_ids,
                         std::span<const std::uint32_t> name_index) {
  const std::int64_t count = static_cast<std::int64_t>(tokens.size()) / row_bytes_;
  if (count == 0) return;
  append_to("tokens", H5T_NATIVE_UINT8, written_, count, tokens.data());
  if (!sample_ids.empty()) append_to("sample_ids", H5T_NATIVE_UINT64, written_, count, sample_ids.data());
  if (!name_index.empty()) append_to("name_index", H5T_NATIVE_UINT32, written_, count, name_index.data());
  written_ += count;
  while (!tokens.empty()) {
    const auto room = static_cast<std::size_t>(crc_block_bytes - block_filled_);
    const std::span<const std::uint8_t> part = tokens.first(std::min(room, tokens.size()));
    crc_ = crc32c(part, crc_);
    block_filled_ += static_cast<std::int64_t>(part.size());
    tokens = tokens.subspan(part.size());
    if (block_filled_ < crc_block_bytes) break;
    checksums_.push_back(crc_);
    crc_ = 0;
    block_filled_ = 0;
  }
}

void ShardWriter::write_names(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> offsets) {
  file_.write("names", bytes, {static_cast<std::int64_t>(bytes.size())});
  file_.write("name_offsets", offsets, {static_cast<std::int64_t>(offsets.size())});
}

void ShardWriter::finish() {
  if (written_ != range_.last - range_.first) {
    throw Error(cat(file_.path(), ": ", written_, " samples written, ", range_.last - range_.first, " announced"));
  }
  if (block_filled_ > 0) checksums_.push_back(crc_);
  file_.write<std::uint32_t>("crc32c", checksums_, {static_cast<std::int64_t>(checksums_.size())});
  file_.write_attribute("crc32c", "block_bytes", crc_block_bytes);
  file_.flush();
  file_.write_attribute("/", "complete", std::int64_t{1});
  file_.flush();
  file_.close();
}

}  // namespace ringtrain
