// Random access to the text of a data set of kind "text".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace ringtrain {

// Random access to tokens from any thread. A file is opened when it is first needed. Bytes are read by pread in blocks.
// Tokens without a byte address are read as a whole, through HDF5. A block is checked once and kept: its CRC, if the
// file has one, and its ids against the vocabulary. Memory grows with the blocks that were needed, up to the size of
// the data set.
class TextDataset : public Dataset {
 public:
  explicit TextDataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory = nullptr);
  ~TextDataset() override;
  // For names: reads row `sample`, [context_length + 1] bytes.
  void read_row(std::int64_t sample, std::span<std::uint8_t> out) const;
  // For running text: reads characters [first, first + out.size()), across shards.
  void read_text(std::int64_t first, std::span<std::uint8_t> out) const;
  std::int64_t bytes_read() const override;
  static std::int64_t bytes_of(const DatasetIndex& index);  // see dataset_bytes()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the distinct names of the data set as sorted UTF-8. They tell known names from invented ones. Empty: the data
// set has no list of names.
std::vector<std::string> read_known_names(const DatasetIndex& index);

}  // namespace ringtrain
