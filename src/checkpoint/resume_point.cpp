#include "checkpoint/resume_point.h"

#include <span>
#include <type_traits>

#include "base/log.h"

namespace ringtrain {
namespace {

void read_checkpoint_of(const std::string& run_dir, ResumePoint& point, const Progress& progress) {
  std::vector<std::string> warnings;
  point.path = newest_checkpoint(run_dir, &warnings, progress);
  for (const std::string& warning : warnings) log_warning(warning);
  if (point.path.empty()) return;
  point.checkpoint = std::make_unique<Checkpoint>(read_checkpoint(point.path, "", progress));
  point.progress = progress_of(*point.checkpoint);
  point.micro_batch = static_cast<std::int64_t>(point.checkpoint->numbers.at("micro_batch"));
}

}  // namespace

ResumePoint shared_resume_point(const std::string& run_dir, Communicator& communicator, Watchdog& watchdog) {
  ResumePoint point;
  SlowWork reading;
  const bool reads = communicator.rank() == 0;
  if (reads) reading.start([&](const Progress& progress) { read_checkpoint_of(run_dir, point, progress); });
  wait_together(reads ? &reading : nullptr, communicator, watchdog, 0);
  reading.finish();
  if (reads) {
    point.stop_cost = recorded_stop_cost(run_dir);
    point.choices = read_choices(run_dir);
  }
  struct Shared {
    RunProgress progress;
    std::int64_t micro_batch;
    bool knows_stop_cost;
  } shared = {point.progress, point.micro_batch, point.stop_cost.has_value()};
  static_assert(std::is_trivially_copyable_v<Shared>, "it travels as bytes");
  communicator.broadcast(std::as_writable_bytes(std::span(&shared, 1)), 0);
  point.progress = shared.progress;
  point.micro_batch = shared.micro_batch;
  point.knows_stop_cost = shared.knows_stop_cost;
  point.choices = share_choices(std::move(point.choices), communicator);
  return point;
}

}  // namespace ringtrain
