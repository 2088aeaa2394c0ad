#include "run/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/table.h"
#include "run/folder.h"

namespace ringtrain {
namespace {

// The lines of metrics.jsonl are Json. Their keys have a fixed order. Doubles have the fewest digits that read back as
// the same bits. Numbers that are not finite become null.

template <class Number>
Json object_of(const std::vector<std::pair<std::string, Number>>& values) {
  Json object = Json::object();
  for (const auto& [name, value] : values) object[name] = static_cast<double>(value);
  return object;
}

Json number_or_null(std::optional<double> number) {
  return number ? Json(*number) : Json();
}

using Report = StepReport;

// When a line has a field.
constexpr auto bound_is_known = [](const Report& r) { return r.run.share_of_bound.has_value(); };
constexpr auto is_of_a_pipeline = [](const Report& r) { return r.run.is_stage; };
constexpr auto waits_for_servers = [](const Report& r) { return r.times.server > 0; };
constexpr auto has_other_ranks = [](const Report& r) { return r.run.sent.has_value(); };
constexpr auto adascale_is_on = [](const Report& r) { return r.run.scale_invariant_epoch.has_value(); };
constexpr auto measured_noise = [](const Report& r) { return r.noise.has_value(); };
constexpr auto measured_noise_of_text = [](const Report& r) { return r.noise && r.noise->is_text; };
constexpr auto measured_changed_noise = [](const Report& r) { return r.noise && !r.noise->change.empty(); };
constexpr auto measured_groups = [](const Report& r) { return r.noise && !r.noise->groups.empty(); };
constexpr auto is_of_a_server = [](const Report& r) { return r.served.has_value(); };
constexpr auto is_of_an_async_server = [](const Report& r) { return r.served && r.run.is_async; };
constexpr auto is_of_a_server_with_backups = [](const Report& r) { return r.served && !r.run.is_async; };
constexpr auto has_trust_ratios = [](const Report& r) { return !r.run.trust.empty(); };
constexpr auto has_loss_scale = [](const Report& r) { return r.loss_scale != 1; };

// The fields of a step's line, in their order. results/README.md says what each of them means. Two have the key
// server_wait_seconds: if a line has both, the later value stands in the place of the earlier one.
const StepField fields_of_a_step[] = {
    {"step", [](const Report& r) -> Json { return r.position.step; }},
    {"epoch", [](const Report& r) -> Json { return r.run.epoch; }},
    {"samples", [](const Report& r) -> Json { return r.position.samples; }},
    {"loss", [](const Report& r) -> Json { return r.loss; }},
    {"accuracy", [](const Report& r) -> Json { return r.accuracy; }},
    {"lr", [](const Report& r) -> Json { return r.learning_rate; }},
    {"global_batch", [](const Report& r) -> Json { return r.samples; }},
    {"grad_norm", [](const Report& r) -> Json { return r.gradient_norm; }},
    {"seconds", [](const Report& r) -> Json { return r.run.seconds; }},
    {"samples_per_second", [](const Report& r) -> Json { return static_cast<double>(r.samples) / r.run.seconds; }},
    {"share_of_bound", [](const Report& r) -> Json { return *r.run.share_of_bound; }, bound_is_known},
    {"elapsed_seconds", [](const Report& r) -> Json { return r.run.elapsed_seconds; }},
    {"input_seconds", [](const Report& r) -> Json { return r.times.input; }},
    {"forward_seconds", [](const Report& r) -> Json { return r.times.forward; }},
    {"backward_seconds", [](const Report& r) -> Json { return r.times.backward; }},
    {"bubble_seconds", [](const Report& r) -> Json { return r.times.bubble; }, is_of_a_pipeline},
    {"boundary_seconds", [](const Report& r) -> Json { return r.times.boundary; }, is_of_a_pipeline},
    {"communication_seconds", [](const Report& r) -> Json { return r.times.communication; }},
    {"update_seconds", [](const Report& r) -> Json { return r.times.update; }},
    {"server_wait_seconds", [](const Report& r) -> Json { return r.times.server; }, waits_for_servers},
    {"sent_bytes", [](const Report& r) -> Json { return r.run.sent->by_message; }, has_other_ranks},
    {"shared_bytes", [](const Report& r) -> Json { return r.run.sent->through_memory; }, has_other_ranks},
    {"gain", [](const Report& r) -> Json { return number_or_null(r.gain); }, adascale_is_on},
    {"scale_invariant_epoch", [](const Report& r) -> Json { return *r.run.scale_invariant_epoch; }, adascale_is_on},
    {"noise_trace", [](const Report& r) -> Json { return r.noise->estimate.trace; }, measured_noise},
    {"noise_gradient", [](const Report& r) -> Json { return r.noise->estimate.gradient; }, measured_noise},
    {"noise_scale", [](const Report& r) -> Json { return r.noise->scale.value; }, measured_noise},
    {"noise_scale_low", [](const Report& r) -> Json { return number_or_null(r.noise->scale.low); }, measured_noise},
    {"noise_scale_high", [](const Report& r) -> Json { return number_or_null(r.noise->scale.high); }, measured_noise},
    {"noise_scale_characters",
     [](const Report& r) -> Json { return r.noise->scale.value * r.noise->targets_per_sample; },
     measured_noise_of_text},
    {"noise_change", [](const Report& r) -> Json { return r.noise->change; }, measured_changed_noise},
    {"noise_groups", [](const Report& r) -> Json { return object_of(r.noise->groups); }, measured_groups},
    {"worker", [](const Report& r) -> Json { return r.served->last.worker; }, is_of_an_async_server},
    {"staleness", [](const Report& r) -> Json { return r.served->last.staleness; }, is_of_an_async_server},
    {"gradients", [](const Report& r) -> Json { return r.served->count; }, is_of_a_server_with_backups},
    {"dropped", [](const Report& r) -> Json { return r.served->dropped; }, is_of_a_server_with_backups},
    {"worker_wait_seconds", [](const Report& r) -> Json { return r.times.workers; }, is_of_a_server},
    {"worker_input_seconds", [](const Report& r) -> Json { return r.served->times_of_workers().input; },
     is_of_a_server},
    {"worker_forward_seconds", [](const Report& r) -> Json { return r.served->times_of_workers().forward; },
     is_of_a_server},
    {"worker_backward_seconds", [](const Report& r) -> Json { return r.served->times_of_workers().backward; },
     is_of_a_server},
    {"server_wait_seconds", [](const Report& r) -> Json { return r.served->times_of_workers().server; },
     is_of_a_server},
    {"trust_ratios", [](const Report& r) -> Json { return object_of(r.run.trust); }, has_trust_ratios},
    {"loss_scale", [](const Report& r) -> Json { return static_cast<double>(r.loss_scale); }, has_loss_scale},
    {"skipped", [](const Report& r) -> Json { return !r.applied; }, has_loss_scale}};

Json line_of(const StepReport& report) {
  Json line;
  for (const StepField& field : fields_of_a_step)
    if (field.is_written == nullptr || field.is_written(report)) line[field.key] = field.value(report);
  return line;
}

// Returns the number after `key` in a complete record ("{"step": 12, ... }"). Returns nothing for a broken line or
// another record.
template <class Number>
std::optional<Number> number_of(const std::string& line, std::string_view key) {
  if (line.empty() || line.front() != '{' || line.back() != '}') return std::nullopt;
  std::size_t position = line.find(cat('"', key, "\":"));
  if (position == std::string::npos) return std::nullopt;
  position = line.find_first_not_of(' ', position + key.size() + 3);
  if (position == std::string::npos) return std::nullopt;
  Number value{};
  const auto result = std::from_chars(line.data() + position, line.data() + line.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

// A temporary file, which publish() gives its final name. The destructor removes the file if it was not published.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)), out_(path_, std::ios::binary | std::ios::trunc) {}
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void add(const std::string& line) { out_ << line << '\n'; }
  void close() {
    out_.close();
    if (!out_) throw Error(cat(path_, ": cannot write"), "free some space: the records are copied when a run resumes");
  }
  void publish(const std::string& name) { publish_file(path_, name); }

 private:
  std::string path_;
  std::ofstream out_;
};

// Keeps the complete records up to `last_step` in run_dir's metrics.jsonl. It works line by line, because the file of a
// long run may be larger than memory. It looks for the step alone, which takes less time than for_each_record(). With
// LaterRecords::drop, later records are deleted. With LaterRecords::keep, they are first written to a file of their own
// and then removed from the old one, so none of them is lost.
void cut_back(const std::string& run_dir, std::int64_t last_step, LaterRecords later) {
  const std::string path = cat(run_dir, "/", run_metrics_name);
  std::ifstream in(path, std::ios::binary);
  if (!in) return;  // a new run has no records
  TemporaryFile kept(path + ".tmp"), moved(run_dir + "/metrics-steps.jsonl.tmp");
  bool dropped = false;
  std::int64_t first = 0, last = 0;  // the first and last step of the later records
  std::string line;
  while (std::getline(in, line)) {
    const bool ends_here = in.eof();  // no newline: the write was cut off, even if the record looks complete
    const auto step = number_of<std::int64_t>(line, "step");
    if (step.has_value() && !ends_here && *step <= last_step) {
      kept.add(line);
      continue;
    }
    dropped = true;
    if (!step.has_value() || ends_here) continue;
    if (later == LaterRecords::keep) moved.add(line);
    if (first == 0) first = *step;
    last = std::max(last, *step);
  }
  if (in.bad()) throw Error(cat(path, ": cannot read"));
  if (!dropped) return;
  kept.close();
  moved.close();
  if (later == LaterRecords::keep && first > 0) {
    const std::string name = unused_path(cat(run_dir, "/metrics-steps-", first, "-to-", last, ".jsonl"));
    moved.publish(name);
    log_info("records of steps ", first, " to ", last, " of the earlier start are kept in ", name);
  }
  kept.publish(path);
}

std::string with_resume(const std::string& advice) {
  return advice.empty() ? "" : advice + "; then go on with --resume";
}

}  // namespace

std::span<const StepField> step_fields() {
  return fields_of_a_step;
}

Recorder::Recorder(const std::string& run_dir, std::int64_t resume_step, std::int64_t total_steps,
                   std::int64_t log_every_steps, LaterRecords later)
    : path_(cat(run_dir, "/", run_metrics_name)), progress_(total_steps, log_every_steps) {
  cut_back(run_dir, resume_step, later);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) {
    const int reason = errno;
    throw Error(cat(path_, ": cannot write: ", std::strerror(reason)), advice_for_writing(reason, path_));
  }
  set_before_line([this] {
    const std::lock_guard lock(mutex_);
    progress_.make_room();
  });
}

Recorder::~Recorder() {
  set_before_line(nullptr);
  ::close(file_);
}

// Each record is one call of write(). A killed process can therefore cut off the last line, but cannot mix or lose
// earlier lines.
void Recorder::append(const std::string& line) {
  if (const int reason = write_fully(file_, line.data(), line.size()); reason != 0)
    throw Error(cat(path_, ": cannot write: ", std::strerror(reason)), with_resume(advice_for_writing(reason, path_)));
}

void Recorder::step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  append(line_of(report).dump() + "\n");
  progress_.step(report);
}

void put(Json& json, const Evaluation& evaluation) {
  json["validation_loss"] = evaluation.loss;
  json["validation_accuracy"] = evaluation.accuracy;
  if (evaluation.accuracy5) json["validation_accuracy5"] = *evaluation.accuracy5;
  json["validation_targets"] = evaluation.targets;
}

void Recorder::evaluation(const EvaluationRecord& record) {
  const std::lock_guard lock(mutex_);
  Json line;
  const Evaluation& result = record.result;
  line["step"] = record.position.step;
  line["epoch"] = record.epoch;
  line["samples"] = record.position.samples;
  put(line, result);
  line["evaluation_seconds"] = result.seconds;
  line["best"] = record.best;
  append(line.dump() + "\n");
  const std::string top5 = result.accuracy5 ? printed(", top-5 %.2f %%", 100 * *result.accuracy5) : "";
  progress_.line(printed("epoch %.2f  validation loss %.4f  accuracy %.2f %%%s  (%.2f s)%s", record.epoch, result.loss,
                         100 * result.accuracy, top5.c_str(), result.seconds, record.best ? "  best so far" : ""));
}

std::vector<double> Recorder::last_accuracies() const {
  std::ifstream in(path_, std::ios::binary);
  std::vector<double> last;
  for (std::string line; std::getline(in, line);) {
    const auto accuracy = number_of<double>(line, "validation_accuracy");
    if (!accuracy) continue;
    last.push_back(*accuracy);
    if (last.size() > 5) last.erase(last.begin());
  }
  return last;
}

void Recorder::note(const std::string& line) {
  const std::lock_guard lock(mutex_);
  progress_.line(line);
}

void Recorder::finish() {
  const std::lock_guard lock(mutex_);
  progress_.finish();
}

void Recorder::flush() {
  const std::lock_guard lock(mutex_);
  if (const int reason = sync_to_disk(file_); reason != 0)
    throw Error(cat(path_, ": cannot sync to disk: ", std::strerror(reason)),
                with_resume(advice_for_writing(reason, path_)));
}

bool Recorder::is_lost() const {
  return has_lost_its_name(file_, path_);
}

void Recorder::require_file() const {
  if (is_lost())
    throw Error(cat(path_, ": was removed, moved or replaced while the run wrote to it, so the run's records are lost"),
                "put the file back if you have it, then go on with --resume: the checkpoint of the last step is whole");
}

void for_each_record(const std::string& run_dir, const std::function<void(const Json& record)>& action) {
  std::ifstream in(cat(run_dir, "/", run_metrics_name), std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();)
    if (const Json record = parse_json(line); record.is_object()) action(record);
}

RecordedSteps recorded_steps(const std::string& run_dir, std::int64_t before, std::int64_t last,
                             std::int64_t evaluated) {
  constexpr std::size_t most = 4;  // a file with many gaps is described by its first ones
  RecordedSteps recorded;
  std::vector<std::string> missing;
  std::int64_t next = before + 1;  // the first step that is not accounted for
  const auto comes = [&](std::int64_t step) {
    if (step > next) missing.push_back(step - 1 > next ? cat("steps ", next, " to ", step - 1) : cat("step ", next));
    next = std::max(next, step + 1);
  };
  bool has_evaluation = evaluated <= before;
  std::ifstream in(cat(run_dir, "/", run_metrics_name), std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto step = number_of<std::int64_t>(line, "step");
    if (!step) continue;
    if (line.find("\"loss\":") != std::string::npos) {
      recorded.last = std::max(recorded.last, *step);
      if (*step <= last) comes(*step);
    }
    if (*step == evaluated && line.find("\"validation_loss\":") != std::string::npos) has_evaluation = true;
  }
  comes(last + 1);
  if (missing.size() > most) {
    missing.resize(most);
    missing.push_back("others");
  }
  if (!has_evaluation) missing.push_back(cat("the evaluation after step ", evaluated));
  recorded.missing = joined(missing);
  return recorded;
}

}  // namespace ringtrain
