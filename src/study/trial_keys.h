// The keys of one trial while they are computed. The varied keys are set first. Rules then compute other keys from
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "study/study_file.h"

namespace ringtrain {

inline constexpr std::int64_t most_ranks = 1'000'000;

class TrialKeys {
 public:
  explicit TrialKeys(const Study& study) : study_(study), draft_(study.base) {}

  // Sets a key. Throws Error at the setting's place.
  void set(const Setting& setting);
  // Applies all rules. A rule is applied after the rules whose results it reads. Throws Error if rules need each other,
  // if a result is not valid for its key, and if batch_per_rank x ranks is not batch.global.
  void apply_rules();
  bool fulfils(const std::vector<Comparison>& conditions);
  // Sets the keys of the study's limits. Returns the samples of the trial by limits.samples, or 0 without it.
  std::int64_t apply_limits();

  const ExperimentDraft& draft() const { return draft_; }
  std::int64_t ranks() const { return ranks_; }
  std::optional<std::int64_t> batch_per_rank() const { return per_rank_; }  // empty if the study does not set it
  const std::vector<std::string>& changed() const { return changed_; }      // keys of the experiment, as they were set

 private:
  double value_of(const Expression::Name& name, const TextPlace& place);
  void apply(const Rule& rule);
  std::int64_t limit_of_samples();
  void apply_rule_of(std::string_view key);

  enum class Progress { waiting, under_way, done };
  const Study& study_;
  ExperimentDraft draft_;
  std::int64_t ranks_ = 1;
  std::optional<std::int64_t> per_rank_;
  std::vector<Progress> rules_;
  std::vector<std::string> changed_;
};

}  // namespace ringtrain
