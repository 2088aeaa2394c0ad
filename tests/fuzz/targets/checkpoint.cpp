// Reads checkpoint files and uses their texts and numbers as a resumed run does. An input that begins with 'T' has
// lines "name=text" and "name:number" for a checkpoint with right checksums. Other inputs are damaged files.
#include "checkpoint/checkpoint.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "checkpoint/resume.h"
#include "checkpoint/snapshot.h"
#include "tests/fuzz/damaged_hdf5.h"

namespace ringtrain::fuzz {
namespace {

constexpr const char* experiment = R"(name: pets
model: {kind: char_lstm, hidden: 64, layers: 2}
data: {train: data/pets-train, validation: data/pets-validation}
batch: {global: 256, worker: 64}
optimizer: {kind: adam}
learning_rate: {base: 0.001}
stop: {epochs: 2}
)";

Checkpoint good_checkpoint() {
  Checkpoint checkpoint;
  checkpoint.step = 3;
  checkpoint.texts = {{"experiment", experiment}, {"vocabulary", "[\"a\",195]"}, {"train_uuid", "1234"}};
  checkpoint.numbers = {{"samples", 12}, {"epoch", 0}, {"offset", 12}, {"micro_batch", 4}};
  checkpoint.arrays = {{"weights/linear.weight", {2, 3}, {1, 2, 3, 4, 5, 6}},
                       {"optimizer/exp_avg/linear.bias", {2}, {7, 8}}};
  return checkpoint;
}

bool same(const Checkpoint& a, const Checkpoint& b) {
  const auto bits = [](const std::map<std::string, Number>& numbers) {
    std::map<std::string, std::pair<std::size_t, std::uint64_t>> result;
    for (const auto& [name, number] : numbers)
      result[name] = {number.index(),
                      std::visit([](auto value) { return std::bit_cast<std::uint64_t>(value); }, number)};
    return result;
  };
  if (a.step != b.step || a.texts != b.texts || bits(a.numbers) != bits(b.numbers) ||
      a.arrays.size() != b.arrays.size())
    return false;
  for (std::size_t i = 0; i < a.arrays.size(); ++i) {
    const NamedArray &x = a.arrays[i], &y = b.arrays[i];
    if (x.name != y.name || x.shape != y.shape || x.values.size() != y.values.size() ||
        (!x.values.empty() && std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(float)) != 0))
      return false;
  }
  return true;
}

// Uses a checkpoint as a resumed run does.
void use(const Checkpoint& checkpoint) {
  error_of([&] { experiment_of(checkpoint, "a checkpoint"); });
  error_of([&] { vocabulary_of(checkpoint); });
  error_of([&] { progress_of(checkpoint); });
  error_of([&] { facts_of(checkpoint); });
  error_of([&] { kept_steps(checkpoint); });
}

void read(std::string_view input) {
  if (input.starts_with("T")) {
    Checkpoint checkpoint = good_checkpoint();
    std::istringstream lines{std::string(input.substr(1))};
    for (std::string line; std::getline(lines, line);) {
      const std::size_t at = line.find_first_of("=:");
      if (at == std::string::npos) continue;
      if (line[at] == '=')
        checkpoint.texts[line.substr(0, at)] = line.substr(at + 1);
      else
        checkpoint.numbers[line.substr(0, at)] = std::strtod(line.c_str() + at + 1, nullptr);
    }
    use(checkpoint);
    const std::string path = in_folder("written.h5");
    write_checkpoint(path, checkpoint);
    expect(same(read_checkpoint(path), checkpoint), "a checkpoint reads back the same");
    return;
  }
  const std::string path =
      damaged_file("checkpoint.h5", input, [](const std::string& good) { write_checkpoint(good, good_checkpoint()); });
  error_of([&] { read_checkpoint_header(path); });
  use(read_checkpoint(path));
}

const Registered registered("checkpoint", read);

}  // namespace
}  // namespace ringtrain::fuzz
