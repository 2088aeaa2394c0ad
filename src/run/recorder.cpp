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
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "run/progress.h"

namespace ringtrain {
namespace {

// Builds one line of JSON. Doubles get the fewest digits that read back as the same bits.
class JsonLine {
 public:
  template <class Number>
  JsonLine& add(const char* key, const Number& value) {
    text_ += text_.empty() ? "{\"" : ", \"";
    text_ += key;
    text_ += "\": ";
    append(value);
    return *this;
  }
  std::string finish() { return std::move(text_) + "}\n"; }

 private:
  void append(bool value) { text_ += value ? "true" : "false"; }
  void append(std::int64_t value) { text_ += std::to_string(value); }
  void append(const std::string& word) { text_ += cat('"', word, '"'); }  // that needs no escapes
  void append(std::optional<double> value) { append(value.value_or(std::nan(""))); }
  void append(double value) {
    if (!std::isfinite(value)) {  // JSON has no word for these
      text_ += "null";
      return;
    }
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    text_.append(digits, end);
  }

  // An object, in one line.
  template <class Number>
  void append(const std::vector<std::pair<std::string, Number>>& values) {
    JsonLine object;
    for (const auto& [name, value] : values) object.add(name.c_str(), static_cast<double>(value));
    text_ += object.text_ + "}";
  }

  std::string text_;
};

void add_noise(JsonLine& line, const NoiseRecord& noise) {
  line.add("noise_trace", noise.estimate.trace)
      .add("noise_gradient", noise.estimate.gradient)
      .add("noise_scale", noise.scale.value)
      .add("noise_scale_low", noise.scale.low)
      .add("noise_scale_high", noise.scale.high);
  if (noise.characters_per_sample) line.add("noise_scale_characters", noise.scale.value * *noise.characters_per_sample);
  if (!noise.change.empty()) line.add("noise_change", noise.change);
  if (!noise.groups.empty()) line.add("noise_groups", noise.groups);
}

// The number behind `key` in a whole record ("{"step": 12, ... }"); nothing for a broken line or another record.
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

// A file that is written beside the one that it will replace, or under a name that is known only at its end. Removed
// when it is not published.
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

// Leaves the whole records up to `last_step` in run_dir's metrics.jsonl. Line by line: the file of a long run may be
// larger than memory. The later records get their own file before they leave the old one, so none is ever lost.
void cut_back(const std::string& run_dir, std::int64_t last_step, LaterRecords later) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::ifstream in(path, std::ios::binary);
  if (!in) return;  // a new run
  TemporaryFile kept(path + ".tmp"), moved(run_dir + "/metrics-steps.jsonl.tmp");
  bool dropped = false;
  std::int64_t first = 0, last = 0;  // of the later records
  std::string line;
  while (std::getline(in, line)) {
    const bool ends_here = in.eof();  // no newline: the write was cut off, even if the record looks whole
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

  // One call of write() per record: a kill can cut off the last line, but never mix or lose lines before it.
  void append(const std::string& line) {
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t written = ::write(file, line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        throw Error(cat(path, ": cannot write: ", std::strerror(errno)),
                    errno == ENOSPC || errno == EDQUOT ? "free some space, then go on with --resume" : "");
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
  if (state_->file < 0) throw Error(cat(state_->path, ": cannot write: ", std::strerror(errno)));
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
  line.add("step", record.step)
      .add("epoch", record.epoch)
      .add("samples", record.samples)
      .add("loss", record.loss)
      .add("accuracy", record.accuracy)
      .add("lr", record.lr)
      .add("global_batch", record.global_batch)
      .add("grad_norm", record.grad_norm)
      .add("seconds", record.seconds)
      .add("samples_per_second", record.samples_per_second)
      .add("elapsed_seconds", record.elapsed_seconds)
      .add("input_seconds", record.input_seconds)
      .add("forward_seconds", record.forward_seconds)
      .add("backward_seconds", record.backward_seconds)
      .add("communication_seconds", record.communication_seconds)
      .add("update_seconds", record.update_seconds);
  if (record.passes) line.add("bubble_seconds", record.passes->bubble).add("boundary_seconds", record.passes->boundary);
  if (record.scale_invariant_epoch)
    line.add("gain", record.gain).add("scale_invariant_epoch", *record.scale_invariant_epoch);
  if (record.noise) add_noise(line, *record.noise);
  if (record.served && record.served->async)
    line.add("worker", record.served->worker).add("staleness", record.served->staleness);
  else if (record.served)
    line.add("gradients", record.served->gradients).add("dropped", record.served->dropped);
  if (record.served) line.add("server_wait_seconds", record.served->server_wait_seconds);
  if (record.server_wait_seconds > 0) line.add("server_wait_seconds", record.server_wait_seconds);
  if (!record.trust_ratios.empty()) line.add("trust_ratios", record.trust_ratios);
  if (record.loss_scale != 1) line.add("loss_scale", record.loss_scale).add("skipped", record.skipped);
  state_->append(line.finish());
  // The first record of a resumed run does not tell what its own step had.
  const std::int64_t new_samples = state_->last_samples >= 0 ? record.samples - state_->last_samples
                                                             : std::llround(record.samples_per_second * record.seconds);
  state_->last_samples = record.samples;
  state_->progress.step(record, new_samples);
}

void Recorder::evaluation(const EvaluationRecord& record) {
  const std::lock_guard lock(state_->mutex);
  JsonLine line;
  line.add("step", record.step)
      .add("epoch", record.epoch)
      .add("samples", record.samples)
      .add("validation_loss", record.validation_loss)
      .add("validation_accuracy", record.validation_accuracy);
  if (record.validation_accuracy5) line.add("validation_accuracy5", *record.validation_accuracy5);
  line.add("validation_targets", record.targets).add("evaluation_seconds", record.seconds).add("best", record.best);
  state_->append(line.finish());
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
    throw Error(cat(state_->path, ": cannot sync to disk: ", std::strerror(errno)));
  }
}

}  // namespace ringtrain
