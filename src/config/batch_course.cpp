#include "config/batch_course.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/rounding.h"

namespace ringtrain {

std::optional<RunPoint> parse_run_point(std::string_view text) {
  constexpr double most_epochs = 1e6, most_steps = 1e12;
  RunPoint point;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, point.at);
  if (text.empty() || error != std::errc() || !std::isfinite(point.at)) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(last - end));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  if (unit != "" && unit != "epoch" && unit != "epochs" && unit != "step" && unit != "steps") return std::nullopt;
  point.in_steps = unit.starts_with("step");
  if (point.in_steps && point.at != std::floor(point.at)) return std::nullopt;
  if (point.at < 0 || point.at > (point.in_steps ? most_steps : most_epochs)) return std::nullopt;
  return point;
}

std::string to_string(const RunPoint& point) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, point.at, std::chars_format::fixed).ptr;
  return std::string(text, end) + (point.in_steps ? point.at == 1 ? " step" : " steps" : "");
}

std::string with_unit(const RunPoint& point) {
  return to_string(point) + (point.in_steps ? "" : point.at == 1 ? " epoch" : " epochs");
}

std::string compact_text(const RunPoint& point) {
  std::string text = to_string(point);
  std::erase(text, ' ');
  return text;
}

std::optional<RunAndPoint> parse_run_and_point(std::string_view text) {
  const auto at = text.rfind('@');
  if (at == std::string_view::npos || at == 0 || text.ends_with(".h5")) return std::nullopt;
  const std::optional<RunPoint> point = parse_run_point(text.substr(at + 1));
  if (!point) return std::nullopt;
  return RunAndPoint{std::string(text.substr(0, at)), *point};
}

std::string run_of_source(const std::string& from) {
  if (const auto source = parse_run_and_point(from)) return source->run;
  return std::filesystem::path(from).parent_path().parent_path().string();
}

namespace {

bool begins_by(const BatchStage& stage, const Position& position) {
  return stage.epoch < position.epoch || (stage.epoch == position.epoch && stage.offset <= position.offset);
}

BatchStage stage_of(const BatchConfig& batch, const EpochFactor& change, std::int64_t epoch_span) {
  const double wanted = scheduled_batch(batch, change), epoch = std::floor(change.epoch);
  BatchStage stage;
  stage.epoch = static_cast<std::int64_t>(epoch);
  // A fraction such as 0.3 is not exact, so the product may be slightly above a whole number of samples. Without the
  // 1e-6, ceil() would then return one sample too many.
  stage.offset = static_cast<std::int64_t>(std::ceil((change.epoch - epoch) * static_cast<double>(epoch_span) - 1e-6));
  stage.batch = std::llround(wanted);
  if (batch.largest > 0 && wanted > static_cast<double>(batch.largest)) {
    stage.batch = batch.largest;
    stage.rate_factor = static_cast<double>(batch.largest) / wanted;
  }
  return stage;
}

// Returns the position after `epochs` whole epochs with the batch of `position`, at which an epoch must begin.
Position after_epochs(const BatchCourse& course, const Position& position, std::int64_t epochs) {
  const std::int64_t batch = course.batch_at(position), all = course.epoch_samples;
  const std::int64_t updates = course.keeps_rest ? divide_up(all, batch) : all / batch;
  const std::int64_t samples = course.keeps_rest ? all : all / batch * batch;
  return {position.step + epochs * updates, position.samples + epochs * samples, position.epoch + epochs, 0};
}

double source_batch(std::int64_t batch, const Experiment& e) {
  return static_cast<double>(batch) / e.branch.batch_factor;
}

}  // namespace

const BatchStage& BatchCourse::stage_at(const Position& position) const {
  const auto later = std::find_if(stages.begin() + 1, stages.end(),
                                  [&](const BatchStage& stage) { return !begins_by(stage, position); });
  return *(later - 1);
}

std::int64_t BatchCourse::samples_at(const Position& position) const {
  const std::int64_t batch = batch_at(position);
  return keeps_rest ? std::min(batch, epoch_samples - position.offset) : batch;
}

Position BatchCourse::after(const Position& position) const {
  const std::int64_t samples = samples_at(position);
  return settled({position.step + 1, position.samples + samples, position.epoch, position.offset + samples});
}

Position BatchCourse::settled(const Position& position) const {
  const std::int64_t left = epoch_samples - position.offset;
  if (left >= (keeps_rest ? 1 : batch_at(position))) return position;
  return {position.step, position.samples, position.epoch + 1, 0};
}

Position BatchCourse::first(const Position& from, const std::function<bool(const Position&)>& holds) const {
  Position p = from;
  while (!holds(p)) {
    const BatchStage* stage = &stage_at(p);
    const std::int64_t same_until = stage == &stages.back() ? INT64_MAX : (stage + 1)->epoch;
    Position next = after(p);
    for (std::int64_t epochs = 1; p.offset == 0 && epochs <= same_until - p.epoch; epochs *= 2) {
      const Position later = after_epochs(*this, p, epochs);
      if (holds(later)) break;
      next = later;
    }
    p = next;
  }
  return p;
}

BatchCourse constant_course(std::int64_t batch, std::int64_t epoch_samples, bool keeps_rest) {
  return {epoch_samples, keeps_rest, {{.batch = batch}}};
}

BatchCourse batch_course(const BatchConfig& batch, std::int64_t epoch_samples, bool keeps_rest,
                         std::int64_t epoch_span) {
  BatchCourse course = constant_course(batch.global, epoch_samples, keeps_rest);
  for (const EpochFactor& change : batch.schedule) course.stages.push_back(stage_of(batch, change, epoch_span));
  return course;
}

std::vector<std::int64_t> batches_on_course(const BatchConfig& batch) {
  std::vector<std::int64_t> all;
  for (const BatchStage& stage : batch_course(batch, 0, false, 0).stages) all.push_back(stage.batch);
  if (batch.follow_noise > 0)
    for (std::int64_t b = 2 * batch.global; b <= batch.largest; b *= 2) all.push_back(b);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

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
