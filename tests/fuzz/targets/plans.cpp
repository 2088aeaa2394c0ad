// Reads the files that runs on GPUs keep: cuDNN's plans, the table of fusions, a run's choices, and descriptions of
// GPUs.
#include "backend/cuda/device/described.h"
#include "backend/cuda/device/plan_store.h"
#include "backend/cuda/program/fusion.h"
#include "base/error.h"
#include "base/hash.h"
#include "run/machine.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const std::string text(input);
  const cuda::PackedPlans plans = cuda::unpack(text);
  const std::string packed = cuda::pack(plans);
  expect(cuda::pack(cuda::unpack(packed)) == packed, "kept plans unpack as they were packed");
  error_of([&] { cuda::parse_answer(text, '\t'); });
  for (const bool kept : {false, true})
    error_of([&] {
      cuda::FusionTable table;
      kept ? table.load_kept(text) : table.load(text);
      const std::string said = table.text();
      cuda::FusionTable again;
      again.load(said);
      expect(again.text() == said, "a table of fusions reads back the same");
    });
  error_of([&] { RunChoices::of_head(text); });
  const std::string head = text.substr(0, text.find('\n'));
  const std::string rest = head.size() < text.size() ? text.substr(head.size() + 1) : "";
  for (const std::string& file : {text, cat(head, '\n', fnv1a(head + rest), '\n', rest)}) {
    write_input("choices", file);
    read_choices(in_folder(""));
  }
  error_of([&] { cuda::find_description(write_input("gpu.json", input)); });
}

const Registered registered("plans", read);

}  // namespace
}  // namespace ringtrain::fuzz
