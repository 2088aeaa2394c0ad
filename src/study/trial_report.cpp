#include "study/trial_report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <new>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/system_limits.h"

namespace ringtrain {
namespace {

constexpr const char* end_words[] = {"finished", "paused", "stopped", "diverged", "failed"};

}  // namespace

TrialReport report_of(const std::exception& error) {
  const bool diverged = dynamic_cast<const Diverged*>(&error) != nullptr;
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return {diverged ? TrialReport::End::diverged : TrialReport::End::failed, no_memory ? out_of_memory : error.what(),
          no_memory ? "a smaller batch.micro, fewer trials at the same time (--ranks) or more memory for the job helps"
                    : hint_of(error),
          thrown_at(error)};
}

void write_report(const std::string& path, const TrialReport& report) try {
  std::error_code ignored;
  const bool is_cause = report.error.empty() || report.end == TrialReport::End::diverged;
  if (!is_cause && std::filesystem::exists(path, ignored)) return;
  const Json json = {{"end", end_words[static_cast<int>(report.end)]},
                     {"error", report.error},
                     {"hint", report.hint},
                     {"thrown_at", report.thrown_at}};
  replace_cache_file(path, json_text(json, 2) + "\n");
} catch (const std::exception&) {
}

std::optional<TrialReport> read_report(const std::string& path) {
  std::ifstream in(path);
  const Json json = parse_json(in);
  const auto text = [&](const char* key) { return text_in(value_or_null(json, key)).value_or(""); };
  const auto end = std::ranges::find(end_words, text("end"));
  if (end == std::end(end_words)) return std::nullopt;
  return TrialReport{static_cast<TrialReport::End>(end - std::begin(end_words)), text("error"), text("hint"),
                     text("thrown_at")};
}

}  // namespace ringtrain
