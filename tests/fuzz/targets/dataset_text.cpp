// Reads data sets of text: header, blocks and their checksums.
#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset.h"
#include "data/text_dataset.h"
#include "data_prep/verify.h"
#include "tests/fuzz/damaged_hdf5.h"

namespace ringtrain::fuzz {
namespace {

constexpr std::size_t block = 8;

void recompute(hid_t file) {
  const std::vector<std::uint8_t> tokens = bytes_of(file, "tokens");
  std::vector<std::uint64_t> ends;
  for (std::uint64_t end = block; end < tokens.size() + block; end += block)
    ends.push_back(std::min<std::uint64_t>(end, tokens.size()));
  write_checksums(file, tokens, ends);
}

void write_good(const std::string& path) {
  h5::File file = h5::File::create(path);
  const std::int64_t samples = 6, context = 3;
  std::vector<std::uint8_t> tokens;
  for (std::uint8_t i = 0; i < samples * (context + 1); ++i) tokens.push_back(i % 5);
  std::vector<std::uint32_t> checksums;
  for (std::size_t at = 0; at < tokens.size(); at += block)
    checksums.push_back(crc32c(std::span<const std::uint8_t>(tokens).subspan(at, block)));
  const std::string names = "annabo";
  const std::vector<std::uint8_t> name_bytes(names.begin(), names.end());
  const std::vector<std::uint64_t> offsets = {0, 4, 6}, ids = {0, 1, 2, 3, 4, 5};
  const std::vector<std::uint32_t> name_index = {0, 0, 0, 0, 1, 1};
  file.write("tokens", std::span<const std::uint8_t>(tokens), {samples, context + 1});
  file.write("crc32c", std::span<const std::uint32_t>(checksums), {std::ssize(checksums)});
  file.write("names", std::span<const std::uint8_t>(name_bytes), {std::ssize(name_bytes)});
  file.write("name_offsets", std::span<const std::uint64_t>(offsets), {3});
  file.write("sample_ids", std::span<const std::uint64_t>(ids), {samples});
  file.write("name_index", std::span<const std::uint32_t>(name_index), {samples});
  file.write_attribute("crc32c", "block_bytes", static_cast<std::int64_t>(block));
  file.write_attribute("tokens", "vocab", std::vector<std::string>{"*", "+", "a", "b", "n"});
  for (const auto& [name, value] : {std::pair{"context_length", context},
                                    {"pad_id", std::int64_t{0}},
                                    {"stop_id", std::int64_t{1}},
                                    {"lowercase", std::int64_t{1}}})
    file.write_attribute("tokens", name, value);
  file.write_attribute("tokens", "pad_side", std::string("left"));
  file.write_integers("/", "schema_version", {1, 0});
  for (const auto& [name, value] : {std::pair{"schema", "ringtrain"},
                                    {"kind", "text"},
                                    {"split", "train"},
                                    {"dataset_name", "fuzz"},
                                    {"dataset_uuid", "1234"}})
    file.write_attribute("/", name, std::string(value));
  for (const auto& [name, value] : {std::pair{"num_samples", samples},
                                    {"num_samples_total", samples},
                                    {"shard_index", std::int64_t{0}},
                                    {"num_shards", std::int64_t{1}},
                                    {"complete", std::int64_t{1}}})
    file.write_attribute("/", name, value);
  file.close();
}

void read_all(const std::string& path) {
  const DatasetIndex index = read_dataset_index(path);
  expect(DatasetIndex::deserialize(index.serialize()).serialize() == index.serialize(), "an index reads back the same");
  error_of([&] { read_known_names(index); });
  if (index.is_image()) return;
  const TextDataset data(index);
  const std::int64_t row = index.text.running_text ? 1 : index.text.context_length + 1;
  std::vector<std::uint8_t> out(static_cast<std::size_t>(row));
  for (const std::int64_t sample : {std::int64_t{0}, index.total / 2, index.total - 1})
    index.text.running_text ? data.read_text(sample, out) : data.read_row(sample, out);
}

void read(std::string_view input) {
  const std::string path = damaged_file("text.h5", input, write_good, recompute);
  error_of([&] { verify_dataset(path); });
  read_all(path);
}

const Registered registered("dataset_text", read);

}  // namespace
}  // namespace ringtrain::fuzz
