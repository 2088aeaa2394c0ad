#include "checkpoint/branch_point.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/kept.h"
#include "checkpoint/resume_rules.h"
#include "checkpoint/snapshot.h"
#include "config/branch.h"
#include "config/schema.h"

namespace ringtrain {
namespace {

constexpr const char* source_name = "branch_source";

}  // namespace

BranchPoint branch_point_at(const Checkpoint& source) {
  const Experiment experiment = experiment_of(source, "the checkpoint");
  std::string text = cat(source.step, "\n", source.text("train_uuid"), "\n", source.text_or(source_name, ""), "\n");
  for (const Field& field : schema())
    if (decides_what_is_learned(field, experiment)) text += cat(field.key, "=", value_text(field, experiment), "\n");
  return {progress_of(source).position, fnv1a(text)};
}

void store_branch_point(Checkpoint& checkpoint, const BranchPoint& point) {
  checkpoint.texts[source_name] = source_text(point);
  checkpoint.numbers["branch_step"] = point.position.step;
  checkpoint.numbers["branch_samples"] = point.position.samples;
  checkpoint.numbers["branch_epoch"] = point.position.epoch;
  checkpoint.numbers["branch_offset"] = point.position.offset;
}

std::optional<BranchPoint> stored_branch_point(const Checkpoint& checkpoint) {
  const std::string source = checkpoint.text_or(source_name, "");
  if (source.empty()) return std::nullopt;
  const auto number = [&](const char* name) { return checkpoint.whole(name); };
  BranchPoint point{{number("branch_step"), number("branch_samples"), number("branch_epoch"), number("branch_offset")},
                    0};
  std::from_chars(source.data(), source.data() + source.size(), point.source, 16);
  return point;
}

std::string source_text(const BranchPoint& point) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(point.source));
  return digits;
}

std::optional<Checkpoint> planned_source(const Experiment& experiment) {
  if (!is_branch(experiment)) return std::nullopt;
  const auto point = parse_run_and_point(experiment.branch.from);
  std::error_code too_long;  // a name too long for a file counts as missing
  if (point && !std::filesystem::exists(point->run, too_long)) return std::nullopt;
  return read_checkpoint_header(source_checkpoint(experiment.branch.from));
}

}  // namespace ringtrain
