#include "study/trial_name.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/table.h"
#include "config/schema.h"

namespace ringtrain {
namespace {

constexpr std::size_t longest_name = 100;

std::string hash_of(const std::string& text) {
  return printed("%08llx", static_cast<unsigned long long>(fnv1a(text) & 0xffffffff));
}

// Writes [30, 60, 80] as 30-60-80. A character that a folder's name cannot have becomes '-', and a hash of the value is
// added.
std::string folder_text(const std::string& value) {
  std::string out;
  bool exact = true;
  for (const char c : value) {
    if (c == '[' || c == ']' || c == ' ') continue;
    if (c == ',') {
      out += '-';
      continue;
    }
    const bool allowed = is_folder_name(std::string("a") + c);
    out += allowed ? c : '-';
    exact = exact && allowed;
  }
  if (out.empty()) return "none";
  return exact ? out : cat(out, "-", hash_of(value));
}

std::string short_name(const Field& field) {
  const std::string_view leaf = leaf_of(field.key);
  const auto same = std::ranges::count_if(schema(), [&](const Field& f) {
    return leaf_of(f.key) == leaf && (&f == &field || !f.off_by_default_);  // a new key leaves other names as they are
  });
  return std::string(same == 1 ? leaf : field.key);
}

}  // namespace

std::string trial_name(const Study& study, const std::vector<const Choice*>& taken,
                       const std::vector<Setting>& drawn_and_seed, const TrialKeys& keys) {
  const Experiment &base = study.base.values(), &own = keys.draft().values();
  const auto changes = [&](const Setting& setting) {
    if (setting.key == ranks_key) return keys.ranks() != 1;
    const Field* field = find_field(setting.key);
    return field == nullptr || value_text(*field, base) != value_text(*field, own);
  };
  std::vector<std::string> names, groups;  // parts for keys outside groups; parts "group-case"
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const bool differs = std::ranges::any_of(taken[i]->settings, changes);
    if (differs && study.axes[i].is_group) groups.push_back(cat(study.axes[i].name, "-", taken[i]->name));
    if (differs && !study.axes[i].is_group) names.push_back(study.axes[i].name);
  }
  for (const Setting& setting : drawn_and_seed)
    if (changes(setting)) names.push_back(setting.key);

  std::string name;
  const auto add = [&name](const std::string& part) { name += cat(name.empty() ? "" : "_", part); };
  const auto varied = [&](std::string_view key) { return std::ranges::count(names, key) > 0; };
  if (varied(ranks_key)) add(cat("ranks-", keys.ranks()));
  if (varied(per_rank_key)) add(cat("batch_per_rank-", keys.batch_per_rank().value_or(0)));
  for (const Field& field : schema())
    if (field.key != "seed" && varied(field.key)) add(cat(short_name(field), "-", folder_text(value_text(field, own))));
  std::ranges::sort(groups);
  for (const std::string& group : groups) add(group);
  if (varied("seed")) add(cat("seed-", own.seed));
  if (name.empty()) return "unchanged";
  return name.size() <= longest_name ? name : cat(name.substr(0, longest_name - 9), "-", hash_of(name));
}

}  // namespace ringtrain
