#include "config/branch.h"

#include <cmath>

namespace ringtrain {
namespace {

double source_batch(std::int64_t batch, const Experiment& e) {
  return static_cast<double>(batch) / e.branch.batch_factor;
}

}  // namespace

bool has_source_batch(std::int64_t batch, const Experiment& e) {
  const double source = source_batch(batch, e);
  return std::abs(source - std::round(source)) < 1e-6 && source > 0.5;
}

Experiment source_experiment(const Experiment& e) {
  Experiment source = e;
  source.branch = {};
  if (!is_branch(e)) return source;
  source.batch.global = std::llround(source_batch(e.batch.global, e));
  source.batch.largest = std::llround(source_batch(e.batch.largest, e));
  return source;
}

BatchCourse course_of(const Experiment& e, std::int64_t epoch_samples, bool keeps_rest, std::int64_t epoch_span) {
  BatchCourse course = batch_course(e.batch, epoch_samples, keeps_rest, epoch_span);
  if (is_branch(e))
    for (BatchStage& stage : course.stages) stage.rate_factor *= e.branch.rate_factor;
  return course;
}

}  // namespace ringtrain
