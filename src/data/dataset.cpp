#include "data/dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/hdf5.h"
#include "data/shard_header.h"

namespace ringtrain {
namespace {

constexpr std::uint8_t index_version = 1;
constexpr const char* index_magic = "RTDX";

// One routine describes the fields for both directions, so that they cannot drift apart.
template <class Archive, class Index>
void transfer(Archive& archive, Index& index) {
  archive(index.prefix), archive(index.kind), archive(index.split), archive(index.dataset_name);
  archive(index.dataset_uuid), archive(index.text.running_text), archive(index.total), archive(index.text.context_length);
  archive(index.text.crc_block_bytes), archive(index.text.vocabulary), archive(index.text.pad_id), archive(index.text.stop_id);
  archive(index.text.lowercase);
  archive.each(index.shards, [&](auto& shard) {
    archive(shard.path), archive(shard.first), archive(shard.count), archive(shard.byte_offset);
    archive(shard.file_bytes), archive(shard.crc32c);
  });
}

class Writer {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void operator()(const std::string& text) {
    (*this)(std::uint64_t{text.size()});
    bytes += text;
  }
  template <class T>
  void operator()(const std::vector<T>& values) {
    each(values, [&](const T& value) { (*this)(value); });
  }
  template <class T, class Action>
  void each(const std::vector<T>& values, const Action& action) {
    (*this)(std::uint64_t{values.size()});
    for (const T& value : values) action(value);
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) { std::memcpy(&value, take(sizeof value), sizeof value); }
  void operator()(std::string& text) {
    const std::size_t size = length();
    text.assign(take(size), size);
  }
  template <class T>
  void operator()(std::vector<T>& values) {
    each(values, [&](T& value) { (*this)(value); });
  }
  template <class T, class Action>
  void each(std::vector<T>& values, const Action& action) {
    values.resize(length());
    for (T& value : values) action(value);
  }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::size_t length() {
    std::uint64_t size = 0;
    (*this)(size);
    if (size > bytes_.size() - position_) throw Error("a data set index was received incomplete");
    return size;
  }
  const char* take(std::size_t size) {
    if (size > bytes_.size() - position_) throw Error("a data set index was received incomplete");
    position_ += size;
    return bytes_.data() + position_ - size;
  }
  const std::string& bytes_;
  std::size_t position_ = 0;
};

// All of [offset, offset + out.size()); transient failures of network file systems are tried again.
void read_fully(int descriptor, const std::string& path, std::uint64_t offset, std::span<std::uint8_t> out) {
  int attempts_left = 3;
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (got > 0) {
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    } else if (got == 0) {
      throw Error(cat(path, ": ends at byte ", offset, ", inside 'tokens'"),
                  "the file was cut while in use, or is an incomplete copy: copy or convert it again");
    } else if (errno == EIO && attempts_left-- > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else if (errno != EINTR) {
      throw Error(cat(path, ": cannot read at byte ", offset, ": ", std::strerror(errno)));
    }
  }
}

}  // namespace

std::string DatasetIndex::serialize() const {
  Writer writer;
  writer.bytes = index_magic;
  writer(index_version);
  transfer(writer, *this);
  return std::move(writer.bytes);
}

DatasetIndex DatasetIndex::deserialize(const std::string& bytes) {
  const std::size_t start = std::strlen(index_magic);
  if (bytes.size() <= start || bytes.compare(0, start, index_magic) != 0 ||
      static_cast<std::uint8_t>(bytes[start]) != index_version) {
    throw Error("a data set index of another version of the program was received",
                "start the same executable on every rank");
  }
  const std::string fields = bytes.substr(start + 1);
  Reader reader(fields);
  DatasetIndex index;
  transfer(reader, index);
  if (!reader.at_end()) throw Error("a data set index was received with bytes left over");
  return index;
}

struct TextDataset::State {
  // One shard's tokens. A block is loaded once, under one of a few locks, and is then read without any.
  struct Shard {
    std::unique_ptr<std::uint8_t[]> tokens;  // not initialised: pages cost memory only when touched
    std::int64_t bytes = 0;
    std::vector<std::atomic<bool>> loaded;
    std::array<std::mutex, 16> locks;
    std::once_flag opened;
    int descriptor = -1;
  };

  explicit State(DatasetIndex given) : index(std::move(given)), shards(index.shards.size()) {
    row_bytes = index.text.running_text ? 1 : index.text.context_length + 1;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      Shard& shard = shards[i];
      shard.bytes = index.shards[i].count * row_bytes;
      shard.tokens.reset(new std::uint8_t[static_cast<std::size_t>(shard.bytes)]);
      shard.loaded = std::vector<std::atomic<bool>>(static_cast<std::size_t>(blocks_of(shard)));
    }
  }
  ~State() {
    for (const Shard& shard : shards) {
      if (shard.descriptor >= 0) ::close(shard.descriptor);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::int64_t blocks_of(const Shard& shard) const {
    return (shard.bytes + index.text.crc_block_bytes - 1) / index.text.crc_block_bytes;
  }

  std::span<std::uint8_t> block_of(const Shard& shard, std::int64_t block) const {
    const std::int64_t begin = block * index.text.crc_block_bytes;
    const std::int64_t size = std::min(index.text.crc_block_bytes, shard.bytes - begin);
    return {shard.tokens.get() + begin, static_cast<std::size_t>(size)};
  }

  void open(std::size_t which) {
    Shard& shard = shards[which];
    const DatasetIndex::Shard& entry = index.shards[which];
    const int descriptor = ::open(entry.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw Error(cat(entry.path, ": cannot open: ", std::strerror(errno)));
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != entry.file_bytes) {
      ::close(descriptor);
      throw Error(cat(entry.path, ": is ", status.st_size, " bytes long here, but was ", entry.file_bytes,
                      " when rank 0 read its header"),
                  "the file was changed during the run, or this host sees an incomplete copy");
    }
    shard.descriptor = descriptor;
    if (entry.byte_offset != no_byte_offset) return;
    const std::vector<std::uint8_t> tokens = h5::File::open(entry.path).read<std::uint8_t>("tokens");
    if (static_cast<std::int64_t>(tokens.size()) != shard.bytes) {
      throw Error(cat(entry.path, ": 'tokens' has ", tokens.size(), " bytes, expected ", shard.bytes));
    }
    std::copy(tokens.begin(), tokens.end(), shard.tokens.get());
  }

  // Empty: the block is as it was written; otherwise what is wrong with it.
  std::string fault_of(std::size_t which, std::int64_t block) const {
    const std::span<const std::uint8_t> bytes = block_of(shards[which], block);
    const std::vector<std::uint32_t>& sums = index.shards[which].crc32c;
    const std::int64_t begin = block * index.text.crc_block_bytes;
    if (!sums.empty() && h5::crc32c(bytes) != sums[static_cast<std::size_t>(block)]) {
      return cat("block ", block, " of 'tokens' (records ", begin / row_bytes, " to ",
                 (begin + static_cast<std::int64_t>(bytes.size()) - 1) / row_bytes, ") has a wrong CRC-32C");
    }
    const auto worst = std::max_element(bytes.begin(), bytes.end());
    if (*worst >= index.text.vocabulary.size()) {
      return cat("record ", (begin + (worst - bytes.begin())) / row_bytes, " of 'tokens' holds the id ", int{*worst},
                 ", but the vocabulary has ", index.text.vocabulary.size(), " symbols");
    }
    return "";
  }

  void load(std::size_t which, std::int64_t block) {
    Shard& shard = shards[which];
    const DatasetIndex::Shard& entry = index.shards[which];
    const std::lock_guard<std::mutex> lock(shard.locks[static_cast<std::size_t>(block) % shard.locks.size()]);
    if (shard.loaded[static_cast<std::size_t>(block)].load(std::memory_order_acquire)) return;
    std::call_once(shard.opened, [&] { open(which); });
    std::string fault;
    for (int attempt = 0; attempt < 2; ++attempt) {  // a second look tells a bad disk from a bad moment
      if (entry.byte_offset != no_byte_offset) {
        read_fully(shard.descriptor, entry.path,
                   entry.byte_offset + static_cast<std::uint64_t>(block * index.text.crc_block_bytes),
                   block_of(shard, block));
      }
      fault = fault_of(which, block);
      if (fault.empty()) break;
    }
    if (!fault.empty()) {
      throw Error(cat(entry.path, ": ", fault),
                  cat("the file is damaged: copy or convert it again; bin/ringtrain-data verify ", index.prefix,
                      " lists all faults"));
    }
    shard.loaded[static_cast<std::size_t>(block)].store(true, std::memory_order_release);
  }

  // Bytes [begin, begin + out.size()) of one shard's tokens.
  void copy(std::size_t which, std::int64_t begin, std::span<std::uint8_t> out) {
    if (out.empty()) return;
    const auto size = static_cast<std::int64_t>(out.size());
    for (std::int64_t block = begin / index.text.crc_block_bytes; block <= (begin + size - 1) / index.text.crc_block_bytes;
         ++block) {
      if (!shards[which].loaded[static_cast<std::size_t>(block)].load(std::memory_order_acquire)) load(which, block);
    }
    std::memcpy(out.data(), shards[which].tokens.get() + begin, out.size());
  }

  std::size_t shard_of(std::int64_t position) const {
    const auto after =
        std::upper_bound(index.shards.begin(), index.shards.end(), position,
                         [](std::int64_t p, const DatasetIndex::Shard& shard) { return p < shard.first; });
    return static_cast<std::size_t>(after - index.shards.begin()) - 1;
  }

  DatasetIndex index;
  std::int64_t row_bytes = 1;
  std::vector<Shard> shards;
};

TextDataset::TextDataset(DatasetIndex index) : state_(std::make_unique<State>(std::move(index))) {}
TextDataset::~TextDataset() = default;

const DatasetIndex& TextDataset::index() const {
  return state_->index;
}

void TextDataset::read_row(std::int64_t sample, std::span<std::uint8_t> out) const {
  if (sample < 0 || sample >= state_->index.total || static_cast<std::int64_t>(out.size()) != state_->row_bytes) {
    throw Error(cat("row ", sample, " of ", out.size(), " symbols asked for; ", state_->index.prefix, " has ",
                    state_->index.total, " rows of ", state_->row_bytes));
  }
  const std::size_t which = state_->shard_of(sample);
  state_->copy(which, (sample - state_->index.shards[which].first) * state_->row_bytes, out);
}

void TextDataset::read_text(std::int64_t first, std::span<std::uint8_t> out) const {
  const std::int64_t total = state_->index.total * state_->row_bytes;
  if (first < 0 || first + static_cast<std::int64_t>(out.size()) > total) {
    throw Error(cat("characters ", first, " to ", first + static_cast<std::int64_t>(out.size()), " asked for; ",
                    state_->index.prefix, " has ", total));
  }
  while (!out.empty()) {
    const std::size_t which = state_->shard_of(first / state_->row_bytes);
    const std::int64_t begin = first - state_->index.shards[which].first * state_->row_bytes;
    const auto size = std::min(out.size(), static_cast<std::size_t>(state_->shards[which].bytes - begin));
    state_->copy(which, begin, out.first(size));
    out = out.subspan(size);
    first += static_cast<std::int64_t>(size);
  }
}

std::int64_t TextDataset::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const State::Shard& shard : state_->shards) {
    bytes += shard.bytes + static_cast<std::int64_t>(shard.loaded.size() * sizeof(std::atomic<bool>) + sizeof shard);
  }
  return bytes;
}

std::vector<std::string> read_known_names(const DatasetIndex& index) {
  const h5::File file = h5::File::open(index.shards.at(0).path);
  if (!file.has("names")) return {};
  const std::vector<std::uint8_t> bytes = file.read<std::uint8_t>("names");
  const std::vector<std::uint64_t> offsets = file.read<std::uint64_t>("name_offsets");
  std::vector<std::string> names;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1] || offsets[i + 1] > bytes.size()) {
      throw Error(cat(file.path(), ": 'name_offsets' is not ascending at ", i), "convert the data again");
    }
    names.emplace_back(bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i]),
                       bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i + 1]));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ringtrain
