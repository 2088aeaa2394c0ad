#include "data/text_dataset.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/rounding.h"
#include "base/shared_memory.h"
#include "data/hdf5.h"
#include "data/shard_files.h"

namespace ringtrain {

struct TextDataset::State {
  // The tokens of one shard, in memory that other processes may share. A block is loaded once under a lock. After that
  // it is read without a lock.
  struct Shard {
    std::span<std::uint8_t> loaded;  // one per block; 1: the block is loaded
    std::span<std::uint8_t> whole;   // one value; 1: all blocks are read, but not yet checked (no byte address)
    std::span<std::uint8_t> tokens;
  };

  State(const DatasetIndex& given, std::shared_ptr<SharedMemory> shared)
      : index(given),
        files(index.shards),
        memory(shared ? std::move(shared) : std::make_shared<SharedMemory>(bytes_of(index))),
        row_bytes(row_bytes_of(index)) {
    MemoryPlaces places(memory->bytes().data());
    for (const DatasetIndex::Shard& entry : index.shards) shards.push_back(place(places, index, entry));
  }

  static std::int64_t row_bytes_of(const DatasetIndex& index) {
    return index.text.running_text ? 1 : index.text.context_length + 1;
  }
  static Shard place(MemoryPlaces& places, const DatasetIndex& index, const DatasetIndex::Shard& entry) {
    const std::int64_t bytes = entry.count * row_bytes_of(index), block = index.text.crc_block_bytes;
    return {.loaded = places.take<std::uint8_t>(divide_up(bytes, block)),
            .whole = places.take<std::uint8_t>(1),
            .tokens = places.take<std::uint8_t>(bytes)};
  }
  static std::size_t bytes_of(const DatasetIndex& index) {
    MemoryPlaces places(nullptr);
    for (const DatasetIndex::Shard& entry : index.shards) place(places, index, entry);
    return places.bytes();
  }

  std::span<std::uint8_t> block_of(const Shard& shard, std::int64_t block) const {
    const auto begin = static_cast<std::size_t>(block * index.text.crc_block_bytes);
    return shard.tokens.subspan(
        begin, std::min(static_cast<std::size_t>(index.text.crc_block_bytes), shard.tokens.size() - begin));
  }

  bool is_loaded(const Shard& shard, std::int64_t block) const {
    return std::atomic_ref(shard.loaded[static_cast<std::size_t>(block)]).load(std::memory_order_acquire) != 0;
  }

  // Returns what is wrong with the block, or "" if its checksum is right.
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

  // One thread of one process reads the block and checks it before other threads and processes see it. If it fails, the
  // next thread tries and finds the same fault.
  void load(std::size_t which, std::int64_t block) {
    const Shard& shard = shards[which];
    const DatasetIndex::Shard& entry = index.shards[which];
    const bool by_address = entry.byte_offset != no_byte_offset;
    const SharedMemory::Lock lock(*memory, by_address ? static_cast<std::size_t>(block) : which);
    if (is_loaded(shard, block)) return;
    if (!by_address && shard.whole[0] == 0) {
      files.read_array(which, "tokens", entry.byte_offset, shard.tokens);
      shard.whole[0] = 1;
    }
    std::string fault;
    for (int attempt = 0; attempt < 2; ++attempt) {  // a second try tells a bad disk from a temporary error
      if (by_address) {
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
    std::atomic_ref(shard.loaded[static_cast<std::size_t>(block)]).store(1, std::memory_order_release);
  }

  // Copies bytes [begin, begin + out.size()) of a shard's tokens.
  void copy(std::size_t which, std::int64_t begin, std::span<std::uint8_t> out) {
    if (out.empty()) return;
    const auto size = static_cast<std::int64_t>(out.size());
    for (std::int64_t block = begin / index.text.crc_block_bytes;
         block <= (begin + size - 1) / index.text.crc_block_bytes; ++block) {
      if (!is_loaded(shards[which], block)) load(which, block);
    }
    std::memcpy(out.data(), shards[which].tokens.data() + begin, out.size());
  }

  const DatasetIndex& index;
  ShardFiles files;
  std::shared_ptr<SharedMemory> memory;
  std::int64_t row_bytes;
  std::vector<Shard> shards;
};

TextDataset::TextDataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory)
    : Dataset(std::move(index)), state_(std::make_unique<State>(index_, std::move(memory))) {}
TextDataset::~TextDataset() = default;

void TextDataset::read_row(std::int64_t sample, std::span<std::uint8_t> out) const {
  if (sample < 0 || sample >= index_.total || static_cast<std::int64_t>(out.size()) != state_->row_bytes) {
    throw Error(cat("row ", sample, " of ", out.size(), " symbols was asked for, but ", index_.prefix, " has only ",
                    index_.total, " rows of ", state_->row_bytes));
  }
  const std::size_t which = index_.shard_of(sample);
  state_->copy(which, (sample - index_.shards[which].first) * state_->row_bytes, out);
}

void TextDataset::read_text(std::int64_t first, std::span<std::uint8_t> out) const {
  const std::int64_t total = index_.total * state_->row_bytes;
  if (first < 0 || first + static_cast<std::int64_t>(out.size()) > total) {
    throw Error(cat("characters ", first, " to ", first + static_cast<std::int64_t>(out.size()),
                    " were asked for, but ", index_.prefix, " has only ", total));
  }
  while (!out.empty()) {
    const std::size_t which = index_.shard_of(first / state_->row_bytes);
    const std::int64_t begin = first - index_.shards[which].first * state_->row_bytes;
    const auto size = std::min(out.size(), state_->shards[which].tokens.size() - static_cast<std::size_t>(begin));
    state_->copy(which, begin, out.first(size));
    out = out.subspan(size);
    first += static_cast<std::int64_t>(size);
  }
}

std::int64_t TextDataset::bytes_read() const {
  return state_->files.bytes_read();
}

std::int64_t TextDataset::bytes_of(const DatasetIndex& index) {
  return static_cast<std::int64_t>(State::bytes_of(index));
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
