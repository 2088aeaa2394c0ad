#include "backend/backend.h"

#include <array>

#include "base/error.h"

namespace ringtrain {
namespace {
constexpr std::array<const char*, 4> names = {"fp32", "tf32", "bf16", "fp16"};
}

const char* pass_name(PassMode mode) {
  switch (mode) {
    case PassMode::training:
      return "training";
    case PassMode::inference:
      return "evaluation";
    case PassMode::statistics:
      return "batch norm's statistics";
  }
  return "?";
}

const char* precision_name(Precision precision) {
  return names[static_cast<std::size_t>(precision)];
}

Precision precision_of(const std::string& name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<Precision>(i);
  throw Error(cat("precision ", name, " is not one of fp32, tf32, bf16, fp16"));
}

void check_norm_groups(std::int64_t micro_batch, std::int64_t group) {
  if (group < 1 || (micro_batch % group != 0 && group % micro_batch != 0))
    throw Error(cat("a micro-batch of ", micro_batch, " holds neither whole batch-norm groups of ", group,
                    " nor an equal part of one"),
                "let one of batch.micro and batch.worker be a multiple of the other");
}

}  // namespace ringtrain
