#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/crc32c.h"
#include "base/error.h"
#include "data/dataset.h"
#include "data/hdf5.h"
#include "data/shard_files.h"

namespace ringtrain {

struct TextDataset::State {
  // One shard's tokens. A block is loaded once, under one of a few locks, and is then read without any.
  struct Shard {
    std::unique_ptr<std::uint8_t[]> tokens;  // not initialised: pages cost memory only when touched
    std::int64_t bytes = 0;
    std::vector<std::atomic<bool>> loaded;
    std::array<std::mutex, 16> locks;
    std::once_flag opened;
  };

  explicit State(DatasetIndex given) : index(std::move(given)), files(index.shards), shards(index.shards.size()) {
    row_bytes = index.text.running_text ? 1 : index.text.context_length + 1;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      Shard& shard = shards[i];
      shard.bytes = index.shards[i].count * row_bytes;
      shard.tokens.reset(new std::uint8_t[static_cast<std::size_t>(shard.bytes)]);
      shard.loaded = std::vector<std::atomic<bool>>(static_cast<std::size_t>(blocks_of(shard)));
    }
  }
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
    files.check(which);
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
    if (!sums.empty() && crc32c(bytes) != sums[static_cast<std::size_t>(block)]) {
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
        files.read(which, entry.byte_offset + static_cast<std::uint64_t>(block * index.text.crc_block_bytes),
                   block_of(shard, block), "tokens");
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
    for (std::int64_t block = begin / index.text.crc_block_bytes;
         block <= (begin + size - 1) / index.text.crc_block_bytes; ++block) {
      if (!shards[which].loaded[static_cast<std::size_t>(block)].load(std::memory_order_acquire)) load(which, block);
    }
    std::memcpy(out.data(), shards[which].tokens.get() + begin, out.size());
  }

  DatasetIndex index;
  ShardFiles files;
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
  const std::size_t which = state_->index.shard_of(sample);
  state_->copy(which, (sample - state_->index.shards[which].first) * state_->row_bytes, out);
}

void TextDataset::read_text(std::int64_t first, std::span<std::uint8_t> out) const {
  const std::int64_t total = state_->index.total * state_->row_bytes;
  if (first < 0 || first + static_cast<std::int64_t>(out.size()) > total) {
    throw Error(cat("characters ", first, " to ", first + static_cast<std::int64_t>(out.size()), " asked for; ",
                    state_->index.prefix, " has ", total));
  }
  while (!out.empty()) {
    const std::size_t which = state_->index.shard_of(first / state_->row_bytes);
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
