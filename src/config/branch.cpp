#include "config/branch.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "config/schema.h"

namespace ringtrain {
namespace {

double divided(std::int64_t batch, double factor) {
  return static_cast<double>(batch) / factor;
}

bool is_whole(double number) {
  return std::abs(number - std::round(number)) < 1e-6 && number > 0.5;
}

}  // namespace

Experiment source_experiment(const Experiment& e) {
  Experiment source = e;
  source.branch = {};
  if (!is_branch(e)) return source;
  source.batch.global = std::llround(divided(e.batch.global, e.branch.batch_factor));
  source.batch.largest = std::llround(divided(e.batch.largest, e.branch.batch_factor));
  return source;
}

BatchCourse course_of(const Experiment& e, std::int64_t epoch_samples, bool keeps_rest, std::int64_t epoch_span) {
  BatchCourse course = batch_course(e.batch, epoch_samples, keeps_rest, epoch_span);
  if (is_branch(e))
    for (BatchStage& stage : course.stages) stage.rate_factor *= e.branch.rate_factor;
  return course;
}

std::optional<Contradiction> branch_contradiction(const Experiment& e) {
  const BranchConfig defaults;
  if (!is_branch(e)) {
    for (const std::string_view key : {"branch.batch_factor", "branch.rate_factor", "branch.samples"})
      if (value_text(*find_field(key), e) != value_text(*find_field(key), Experiment()))
        return {{{key, "branch.from"},
                 cat(statement(key, e),
                     " but branch.from is not given, expected the checkpoint that "
                     "the run goes on from")}};
    return std::nullopt;
  }
  if (e.branch.batch_factor == defaults.batch_factor) return std::nullopt;
  const auto against = [&](std::string_view key, std::string_view expected) {
    return Contradiction{{"branch.batch_factor", key},
                         cat(statement("branch.batch_factor", e), " but ", statement(key, e), ", expected ", expected)};
  };
  if (e.batch.follow_noise > 0) return against("batch.follow_noise", "a batch that the noise does not change");
  if (e.optimizer.adascale) return against("optimizer.adascale", "false: its gain follows the batch by itself");
  if (e.data.order == "streams")
    return against("data.order",
                   "windows: each row of the batch reads a stream of its own, so the batch cannot change");
  for (const std::string_view key : {"batch.global", "batch.largest"}) {
    const std::int64_t batch = key == "batch.global" ? e.batch.global : e.batch.largest;
    if (batch > 0 && !is_whole(divided(batch, e.branch.batch_factor)))
      return against(key, "branch.batch_factor times that of the run which it leaves");
  }
  return std::nullopt;
}

}  // namespace ringtrain
