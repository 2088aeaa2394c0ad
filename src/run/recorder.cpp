#include "run/recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "run/progress.h"

namespace ringtrain {
namespace {

// One line of metrics.jsonl. The keys have a fixed order. Doubles have the fewest digits that read back as the same
// bits. Numbers that are not finite become null.
using JsonLine = nlohmann::ordered_json;

template <class Number>
JsonLine object_of(const std::vector<std::pair<std::string, Number>>& values) {
  JsonLine object = JsonLine::object();
  for (const auto& [name, value] : values) object[name] = static_cast<double>(value);
  return object;
}

JsonLine number_or_null(std::optional<double> number) {
  return number ? JsonLine(*number) : JsonLine();
}

void add_noise(JsonLine& line, const NoiseRecord& noise) {
  line["noise_trace"] = noise.estimate.trace;
  line["noise_gradient"] = noise.estimate.gradient;
  line["noise_scale"] = noise.scale.value;
  line["noise_scale_low"] = number_or_null(noise.scale.low);
  line["noise_scale_high"] = number_or_null(noise.scale.high);
  if (noise.characters_per_sample) line["noise_scale_characters"] = noise.scale.value * *noise.characters_per_sample;
  if (!noise.change.empty()) line["noise_change"] = noise.change;
  if (!noise.groups.empty()) line["noise_groups"] = object_of(noise.groups);
}

void add_served(JsonLine& line, const ServedRecord& served) {
  if (served.async) {
    line["worker"] = served.worker;
    line["staleness"] = served.staleness;
  } else {
    line["gradients"] = served.gradients;
    line["dropped"] = served.dropped;
  }
  line["worker_wait_seconds"] = served.worker_wait_seconds;
  line["worker_input_seconds"] = served.workers.input;
  line["worker_forward_seconds"] = served.workers.forward;
  line["worker_backward_seconds"] = served.workers.backward;
  line["server_wait_seconds"] = served.workers.server;
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
// long run may be larger than memory. With LaterRecords::drop, later records are deleted. With LaterRecords::keep, they
// are first written to a file of their own and then removed from the old one, so none of them is lost.
void cut_back(const std::string& run_dir, std::int64_t last_step, LaterRecords later) {
  const std::string path = run_dir + "/metrics.jsonl";
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

struct Recorder::State {
  std::string path;
  int file = -1;
  std::int64_t last_samples = -1;
  ProgressDisplay progress;
  std::mutex mutex;

  State(std::int64_t total_steps, std::int64_t log_every_steps) : progress(total_steps, log_every_steps) {}
  ~State() {
    if (file >= 0) ::close(file);
  }

  // Each record is one call of write(). A killed process can therefore cut off the last line, but cannot mix or lose
  // earlier lines.
  void append(const std::string& line) {
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t written = ::write(file, line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        const int reason = errno;
        throw Error(cat(path, ": cannot write: ", std::strerror(reason)),
                    with_resume(advice_for_writing(reason, path)));
      }
      done += static_cast<std::size_t>(written);
    }
  }
};

Recorder::Recorder(const std::string& run_dir, std::int64_t resume_step, std::int64_t total_steps,
                   std::int64_t log_every_steps, LaterRecords later)
    : state_(std::make_unique<State>(total_steps, log_every_steps)) {
  state_->path = run_dir + "/metrics.jsonl";
  cut_back(run_dir, resume_step, later);
  state_->file = ::open(state_->path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (state_->file < 0) {
    const int reason = errno;
    throw Error(cat(state_->path, ": cannot write: ", std::strerror(reason)), advice_for_writing(reason, state_->path));
  }
  set_before_line([state = state_.get()] {
    const std::lock_guard lock(state->mutex);
    state->progress.make_room();
  });
}

Recorder::~Recorder() {
  set_before_line(nullptr);
}

void Recorder::step(const StepRecord& record) {
  const std::lock_guard lock(state_->mutex);
  JsonLine line;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["samples"] = record.samples;
  line["loss"] = record.loss;
  line["accuracy"] = record.accuracy;
  line["lr"] = record.lr;
  line["global_batch"] = record.global_batch;
  line["grad_norm"] = record.grad_norm;
  line["seconds"] = record.seconds;
  line["samples_per_second"] = record.samples_per_second;
  if (record.share_of_bound) line["share_of_bound"] = *record.share_of_bound;
  line["elapsed_seconds"] = record.elapsed_seconds;
  line["input_seconds"] = record.times.input;
  line["forward_seconds"] = record.times.forward;
  line["backward_seconds"] = record.times.backward;
  if (record.is_stage) {
    line["bubble_seconds"] = record.times.bubble;
    line["boundary_seconds"] = record.times.boundary;
  }
  line["communication_seconds"] = record.times.communication;
  line["update_seconds"] = record.times.update;
  if (record.times.server > 0) line["server_wait_seconds"] = record.times.server;
  if (record.sent) {
    line["sent_bytes"] = record.sent->by_message;
    line["shared_bytes"] = record.sent->through_memory;
  }
  if (record.scale_invariant_epoch) {
    line["gain"] = number_or_null(record.gain);
    line["scale_invariant_epoch"] = *record.scale_invariant_epoch;
  }
  if (record.noise) add_noise(line, *record.noise);
  if (record.served) add_served(line, *record.served);
  if (!record.trust_ratios.empty()) line["trust_ratios"] = object_of(record.trust_ratios);
  if (record.loss_scale != 1) {
    line["loss_scale"] = record.loss_scale;
    line["skipped"] = record.skipped;
  }
  state_->append(line.dump() + "\n");
  // The first step of a start has no earlier record whose samples could be subtracted.
  const std::int64_t new_samples = state_->last_samples >= 0 ? record.samples - state_->last_samples
                                                             : std::llround(record.samples_per_second * record.seconds);
  state_->last_samples = record.samples;
  state_->progress.step(record, new_samples);
}

void Recorder::evaluation(const EvaluationRecord& record) {
  const std::lock_guard lock(state_->mutex);
  JsonLine line;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["samples"] = record.samples;
  line["validation_loss"] = record.validation_loss;
  line["validation_accuracy"] = record.validation_accuracy;
  if (record.validation_accuracy5) line["validation_accuracy5"] = *record.validation_accuracy5;
  line["validation_targets"] = record.targets;
  line["evaluation_seconds"] = record.seconds;
  line["best"] = record.best;
  state_->append(line.dump() + "\n");
  char text[160], top5[32] = "";
  if (record.validation_accuracy5)
    std::snprintf(top5, sizeof top5, ", top-5 %.2f %%", 100 * *record.validation_accuracy5);
  std::snprintf(text, sizeof text, "epoch %.2f  validation loss %.4f  accuracy %.2f %%%s  (%.2f s)%s", record.epoch,
                record.validation_loss, 100 * record.validation_accuracy, top5, record.seconds,
                record.best ? "  best so far" : "");
  state_->progress.line(text);
}

std::vector<double> Recorder::last_accuracies() const {
  std::ifstream in(state_->path, std::ios::binary);
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
  const std::lock_guard lock(state_->mutex);
  state_->progress.line(line);
}

void Recorder::finish() {
  const std::lock_guard lock(state_->mutex);
  state_->progress.finish();
}

void Recorder::flush() {
  const std::lock_guard lock(state_->mutex);
  if (::fdatasync(state_->file) != 0 && errno != EINVAL && errno != EROFS) {
    const int reason = errno;
    throw Error(cat(state_->path, ": cannot sync to disk: ", std::strerror(reason)),
                with_resume(advice_for_writing(reason, state_->path)));
  }
}

}  // namespace ringtrain
