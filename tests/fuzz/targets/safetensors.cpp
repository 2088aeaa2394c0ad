// Reads weights from safetensors files of other programs.
#include "checkpoint/safetensors.h"

#include <cstring>
#include <deque>

#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

bool is_real(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" || dtype == "F64";
}

void read(std::string_view input) {
  const SafetensorsFile file(write_input("weights.safetensors", input));
  std::deque<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!is_real(entry.dtype)) continue;
    values.emplace_back(static_cast<std::size_t>(entry.count));
    file.read(entry, values.back());
    tensors.push_back({entry.name, "F32", entry.shape, std::span<const float>(values.back())});
  }
  const std::string copy = in_folder("copy.safetensors");
  write_safetensors(copy, file.metadata(), tensors);
  const SafetensorsFile again(copy);
  expect(again.metadata() == file.metadata(), "metadata reads back as it was written");
  expect(again.entries().size() == tensors.size(), "all tensors are written");
  for (const SafetensorsEntry& entry : again.entries()) {
    std::vector<float> found(static_cast<std::size_t>(entry.count));
    again.read(entry, found);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].name == entry.name)
        expect(found.size() == values[i].size() &&
                   (found.empty() || std::memcmp(found.data(), values[i].data(), found.size() * sizeof(float)) == 0),
               "a tensor reads back with the same bits");
  }
}

const Registered registered("safetensors", read);

}  // namespace
}  // namespace ringtrain::fuzz
