#include "checkpoint/writer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/system_limits.h"
#include "checkpoint/run_state.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

// Gives the file a second name with a hard link if the file system supports it. Otherwise copies the file. The first
// name may be deleted afterwards.
void publish_copy(const std::string& from, const std::string& to, const Progress& progress) {
  const std::string temporary = to + ".tmp";
  ::unlink(temporary.c_str());
  publish_written(temporary, to, [&] {
    if (::link(from.c_str(), temporary.c_str()) != 0) copy_to_disk(from, temporary, progress);
  });
}

// The new checkpoint is whole, so nothing here ends the run.
void remove_old(const std::string& run_dir, const Checkpoint& newest, std::int64_t keep) try {
  const std::vector<std::int64_t> for_ever = kept_steps(newest);
  std::int64_t kept = 0;
  for (const std::int64_t step : checkpoint_steps(run_dir)) {
    if (step <= newest.step && kept < keep) {
      ++kept;
      continue;
    }
    if (std::ranges::count(for_ever, step) > 0) continue;
    const std::string path = checkpoint_path(run_dir, step);
    if (::unlink(path.c_str()) != 0) log_warning(path, ": cannot remove the old checkpoint: ", std::strerror(errno));
  }
} catch (const Error& error) {
  log_warning(error.what(), "; old checkpoints stay");
}

// An update can overflow even if loss and gradient were finite. Nobody could resume from such weights.
void require_finite(const Checkpoint& checkpoint) {
  for (const NamedArray& array : checkpoint.arrays) {
    if (std::all_of(array.values.begin(), array.values.end(), [](float value) { return std::isfinite(value); }))
      continue;
    throw Diverged(cat("step ", checkpoint.step, ": values of '", array.name,
                       "' are not finite, so no checkpoint of this step was written"),
                   "lower learning_rate.base, lengthen the warm-up or set optimizer.clip_norm, then --resume");
  }
}

CheckpointCost write_all(const std::string& run_dir, std::int64_t keep, const Checkpoint& checkpoint, bool best,
                         const Progress& progress) {
  require_finite(checkpoint);
  const double begin = now_seconds();
  const std::string path = checkpoint_path(run_dir, checkpoint.step), folder = fs::path(path).parent_path().string();
  std::error_code code;
  fs::create_directories(folder, code);
  if (code)
    throw Error(cat(folder, ": cannot make the folder: ", code.message()), advice_for_writing(code.value(), path));
  write_checkpoint(path, checkpoint, progress);
  const CheckpointCost cost{static_cast<std::int64_t>(fs::file_size(path, code)), now_seconds() - begin};
  if (best) publish_copy(path, best_checkpoint_path(run_dir), progress);
  remove_old(run_dir, checkpoint, keep);
  return cost;
}

}  // namespace

void finish_interrupted_write(const std::string& run_dir, std::optional<std::int64_t> best_step,
                              const Progress& progress) {
  const std::string best = best_checkpoint_path(run_dir);
  std::error_code code;
  for (fs::directory_iterator entry(checkpoint_folder(run_dir), code), end; !code && entry != end;
       entry.increment(code))
    if (entry->path().extension() == ".tmp") ::unlink(entry->path().c_str());
  if (!best_step) return;
  try {
    if (fs::exists(best) && read_checkpoint_header(best).step == *best_step) return;
  } catch (const Error&) {  // a damaged best.h5 is replaced
  }
  publish_copy(checkpoint_path(run_dir, *best_step), best, progress);
}

CheckpointWriter::CheckpointWriter(std::string run_dir, std::int64_t keep)
    : run_dir_(std::move(run_dir)), keep_(std::max<std::int64_t>(keep, 1)) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    finish();
  } catch (const std::exception& error) {  // another error is already being thrown, or finish() was not called
    log_warning(error.what());
  }
}

void CheckpointWriter::start(Checkpoint checkpoint, bool best) {
  // A std::function must be copyable, but the checkpoint is large. So it is shared.
  const auto shared = std::make_shared<const Checkpoint>(std::move(checkpoint));
  work_.start([this, best, shared](const Progress& progress) {
    const CheckpointCost cost = write_all(run_dir_, keep_, *shared, best, progress);
    if (cost.seconds > slowest_.seconds) slowest_ = cost;
  });
}

SlowWork::~SlowWork() {
  if (thread_.joinable()) thread_.join();
}

void SlowWork::start(std::function<void(const Progress&)> work) {
  finish();
  running_ = true;
  thread_ = start_thread("reads or writes checkpoints", [this, work = std::move(work)] {
    try {
      work([this](std::int64_t bytes) { bytes_ += bytes; });
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
    const std::lock_guard lock(mutex_);
    running_ = false;
    ended_.notify_all();
  });
}

bool SlowWork::ended_within(double seconds) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !running_; });
}

void SlowWork::finish() {
  if (thread_.joinable()) thread_.join();
  failed_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void wait_together(SlowWork* work, Communicator& communicator, Watchdog& watchdog, std::int64_t step) {
  constexpr double seconds_of_round = 0.1;  // time between two messages to the ranks that wait
  watchdog.enter(step, Phase::checkpoint);
  std::int64_t seen = work != nullptr ? work->bytes() : 0;
  for (;;) {
    std::array<double, 2> news = {0, 0};  // 1 if still at work; bytes since the last round
    if (work != nullptr) {
      const bool ended = work->ended_within(seconds_of_round);
      const std::int64_t bytes = work->bytes();
      news = {ended ? 0.0 : 1.0, static_cast<double>(bytes - std::exchange(seen, bytes))};
    }
    communicator.poll();  // with one rank, the sum below does not poll
    communicator.sum(std::span<double>(news));
    if (news[0] == 0) return;
    if (news[1] > 0) watchdog.alive();
  }
}

}  // namespace ringtrain
