#include "study/study_work.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/resume_rules.h"
#include "config/reader.h"
#include "config/yaml_document.h"
#include "run/folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;

bool holds_a_run(const fs::path& folder) {
  std::error_code code;
  if (fs::is_symlink(folder, code) || !fs::is_directory(folder, code)) return false;
  for (const char* name : {"run.json", "experiment.yaml", "metrics.jsonl", trial_file_name})
    if (fs::exists(folder / name, code)) return true;
  return false;
}

// Returns the bytes as hexadecimal text, because JSON strings cannot hold arbitrary bytes.
std::string to_hex(const std::string& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string from_hex(const std::string& text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  return bytes;
}

}  // namespace

std::string StudyWork::serialize() const {
  SortedJson json = {{"folder", to_hex(folder)},
                     {"facts",
                      {to_hex(facts.name), to_hex(facts.experiment), to_hex(facts.file), to_hex(facts.text),
                       facts.commit, to_hex(facts.search)}},
                     {"knows_seconds", knows_seconds},
                     {"asks_for_gpus", asks_for_gpus},
                     {"job", job},
                     {"number", number},
                     {"trials", SortedJson::array()},
                     {"queue", SortedJson::array()},
                     {"indices", SortedJson::object()}};
  for (const TrialRecord& t : trials)
    json["trials"].push_back({t.name, t.also, to_hex(t.overrides), t.ranks, t.seed, t.starts});
  for (const QueuedTrial& q : queue) json["queue"].push_back({q.place, to_hex(q.experiment), q.seconds});
  json["points"] = points;
  json["rungs"] = SortedJson::array();
  for (const Rung& rung : rungs) json["rungs"].push_back({rung.points, rung.samples});
  for (const auto& [prefix, index] : indices) json["indices"][to_hex(prefix)] = to_hex(index.serialize());
  return json.dump();
}

StudyWork StudyWork::deserialize(const std::string& text) {
  const SortedJson json = SortedJson::parse(text);
  StudyWork work;
  work.folder = from_hex(json.at("folder"));
  const SortedJson& facts = json.at("facts");
  work.facts = {from_hex(facts[0]), from_hex(facts[1]), from_hex(facts[2]),
                from_hex(facts[3]), facts[4],           from_hex(facts[5])};
  work.knows_seconds = json.at("knows_seconds");
  work.asks_for_gpus = json.at("asks_for_gpus");
  work.job = json.at("job");
  work.number = json.at("number");
  for (const SortedJson& t : json.at("trials")) {
    TrialRecord record;
    record.name = t[0];
    record.also = t[1].get<std::vector<std::string>>();
    record.overrides = from_hex(t[2]);
    record.ranks = t[3];
    record.seed = t[4];
    record.starts = t[5];
    work.trials.push_back(std::move(record));
  }
  work.points = json.at("points").get<std::vector<std::string>>();
  for (const SortedJson& rung : json.at("rungs")) work.rungs.push_back({rung[0], rung[1]});
  for (const SortedJson& q : json.at("queue")) work.queue.push_back({q[0], from_hex(q[1]), q[2]});
  for (const auto& [prefix, index] : json.at("indices").items())
    work.indices.emplace(from_hex(prefix), DatasetIndex::deserialize(from_hex(index)));
  return work;
}

void check_folder(const std::string& folder, bool resume) {
  std::error_code code;
  if (fs::exists(folder, code) && !fs::is_directory(folder, code))
    throw Error(cat(folder, ": exists and is not a folder"), "give the study another name");
  if (resume) return;
  std::string first;
  int begun = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code))
    if (holds_a_run(entry.path())) {
      const std::string name = entry.path().filename().string();
      if (begun++ == 0 || name < first) first = name;
    }
  if (begun == 0) return;
  throw Error(cat(folder, ": ", begun, begun == 1 ? " trial has" : " trials have", " begun (", first,
                  begun == 1 ? ")" : ", ...)", ", and a study never overwrites what has run"),
              "add --resume to go on with the trials that have not finished, or give the study another name");
}

void check_same_result(const std::string& folder, const Trial& trial) {
  const std::string place = cat(folder, "/", trial.name), path = place + "/experiment.yaml";
  std::error_code code;
  if (fs::exists(place, code) && !fs::is_directory(place, code))
    throw Error(cat(place, ": exists and is not a folder"), "remove it, or give the study another name");
  if (!fs::exists(path, code)) return;
  const Experiment before = parse_experiment(read_yaml_text(path, "experiment"), path, {});
  std::string differences;
  for (const KeyChange& change : changed_keys(before, trial.experiment))
    if (change.decides_result)
      differences += cat(differences.empty() ? "" : "; ", change.key, " is ", change.is, ", was ", change.was);
  if (differences.empty()) return;
  throw Error(cat(place, ": trial ", trial.name, " has run as another experiment: ", differences),
              cat("give the same key.path=value arguments as before and put the study and its experiment back as they "
                  "were, or give the study another name, or remove ",
                  place, " to run the trial anew"));
}

Experiment experiment_in(const std::string& folder, const Trial& trial) {
  Experiment experiment = trial.experiment;
  experiment.run.dir = cat(folder, "/", trial.name);
  experiment.run.id = "";
  return experiment;
}

}  // namespace ringtrain
