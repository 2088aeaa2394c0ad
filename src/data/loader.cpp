// The ring: micro-batch k of the run since the last seek lies in slot k mod (prefetch + 1). Threads take the next k
// whose slot is free and fill it without a lock; next() hands the slots out in order.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

// prefetch slots ahead, and the one that the trainer holds.
std::int64_t slots_of(const LoaderPlan& plan) {
  return plan.prefetch + 1;
}
std::size_t slot_positions(const LoaderPlan& plan) {
  return static_cast<std::size_t>(plan.micro_batch * plan.sequence);
}

}  // namespace

struct Loader::State {
  enum class Phase { empty, filling, full };
  struct Slot {
    Phase phase = Phase::empty;
    MicroBatch batch;
    std::span<std::uint8_t> inputs;
    std::span<std::int32_t> targets;
    std::exception_ptr failure;
  };
  // Masked blanks make the number of targets of a step depend on its symbols, in all its micro-batches.
  struct StepCount {
    std::int64_t global_step = -1, targets = 0;
  };

  State(std::shared_ptr<const TextDataset> given, const LoaderPlan& given_plan)
      : dataset(std::move(given)),
        plan(given_plan),
        steps(steps_per_epoch(dataset->index(), plan)),
        accumulation(plan.rows / plan.micro_batch),
        all_inputs(static_cast<std::size_t>(slots_of(plan)) * slot_positions(plan)),
        all_targets(all_inputs.size()),
        slots(static_cast<std::size_t>(slots_of(plan))) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      slot.inputs = std::span(all_inputs).subspan(i * slot_positions(plan), slot_positions(plan));
      slot.targets = std::span(all_targets).subspan(i * slot_positions(plan), slot_positions(plan));
      slot.batch.inputs = slot.inputs;
      slot.batch.targets = slot.targets;
    }
    try {
      for (std::int64_t i = 0; i < plan.threads; ++i) threads.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~State() { stop(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      ending = true;
    }
    slot_free.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Slot& slot(std::int64_t k) { return slots[static_cast<std::size_t>(k) % slots.size()]; }

  void work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      slot_free.wait(lock, [&] { return ending || (started && slot(next_fill).phase == Phase::empty); });
      if (ending) return;
      const std::int64_t k = next_fill++;
      Slot& mine = slot(k);
      mine.phase = Phase::filling;
      mine.failure = nullptr;
      ++filling;
      const std::int64_t origin = first_step;
      lock.unlock();
      try {
        fill(mine, origin + k / accumulation, k % accumulation);
      } catch (...) {
        mine.failure = std::current_exception();
      }
      lock.lock();
      mine.phase = Phase::full;
      --filling;
      slot_full.notify_all();
    }
  }

  // The row's inputs and targets; the number of targets that count.
  std::int64_t read(const StepRows::Row& row, std::span<std::uint8_t> scratch, std::uint8_t* inputs,
                    std::int32_t* targets) const {
    const auto count = static_cast<std::size_t>(row.targets);
    const auto length = static_cast<std::size_t>(plan.sequence);
    const DatasetIndex& index = dataset->index();
    if (count > 0 && plan.order == TextOrder::rows) dataset->read_row(row.first, scratch);
    if (count > 0 && plan.order != TextOrder::rows) dataset->read_text(row.first, scratch.first(count + 1));
    std::fill(scratch.begin() + static_cast<std::ptrdiff_t>(count == 0 ? 0 : count + 1), scratch.end(),
              static_cast<std::uint8_t>(std::max<std::int64_t>(0, index.text.pad_id)));
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const bool counts = i < count && !(plan.mask_blanks && scratch[i + 1] == index.text.pad_id);
      counted += counts;
      if (inputs == nullptr) continue;
      inputs[i] = scratch[i];
      targets[i] = counts ? std::int32_t{scratch[i + 1]} : ignored_target;
    }
    return counted;
  }

  void fill(Slot& mine, std::int64_t global_step, std::int64_t micro_step) {
    MicroBatch& batch = mine.batch;
    batch.epoch = plan.evaluation ? 0 : global_step / steps;
    batch.step = global_step % steps;
    batch.micro_step = micro_step;
    batch.first_row = plan.first_row + micro_step * plan.micro_batch;
    const StepRows rows(dataset->index(), plan, batch.epoch, batch.step);
    batch.resets_state = rows.resets_state();
    batch.valid_rows = 0;
    std::vector<std::uint8_t> scratch(static_cast<std::size_t>(plan.sequence) + 1);
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < plan.micro_batch; ++i) {
      const StepRows::Row row = rows(batch.first_row + i);
      batch.valid_rows += row.targets > 0;
      counted += read(row, scratch, mine.inputs.data() + i * plan.sequence, mine.targets.data() + i * plan.sequence);
    }
    batch.step_targets = accumulation == 1 ? counted : targets_of_step(global_step, rows, scratch);
  }

  std::int64_t targets_of_step(std::int64_t global_step, const StepRows& rows, std::span<std::uint8_t> scratch) {
    if (!plan.mask_blanks || dataset->index().text.pad_id < 0) return sum_targets(rows, {});
    // The micro-batches of a step follow each other, so a short memory is enough; others wait here and then find it.
    const std::lock_guard<std::mutex> lock(step_counts_mutex);
    for (const StepCount& known : step_counts) {
      if (known.global_step == global_step) return known.targets;
    }
    step_counts.push_back({global_step, sum_targets(rows, scratch)});
    if (step_counts.size() > slots.size() + threads.size()) step_counts.pop_front();
    return step_counts.back().targets;
  }

  // Without scratch: no blanks are masked, so nothing needs to be read.
  std::int64_t sum_targets(const StepRows& rows, std::span<std::uint8_t> scratch) const {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < plan.rows; ++i) {
      const StepRows::Row row = rows(plan.first_row + i);
      sum += scratch.empty() ? row.targets : read(row, scratch, nullptr, nullptr);
    }
    return sum;
  }

  void seek(std::int64_t global_step) {
    std::unique_lock<std::mutex> lock(mutex);
    // An evaluation that ended where it began again needs nothing thrown away.
    const std::int64_t next_step = first_step + next_take / accumulation;
    const bool already_there = started && next_take % accumulation == 0 &&
                               (plan.evaluation ? next_step % steps == global_step : next_step == global_step);
    if (already_there && slot(next_take).failure == nullptr) return;
    started = false;
    slot_full.wait(lock, [&] { return filling == 0; });
    for (Slot& each : slots) each.phase = Phase::empty;
    next_fill = next_take = 0;
    holding = false;
    first_step = global_step;
    started = true;
    lock.unlock();
    slot_free.notify_all();
  }

  const MicroBatch& next() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex);
    if (holding) {
      slot(next_take - 1).phase = Phase::empty;
      holding = false;
    }
    started = true;
    slot_free.notify_all();
    Slot& mine = slot(next_take);
    slot_full.wait(lock, [&] { return mine.phase == Phase::full; });
    waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (mine.failure != nullptr) std::rethrow_exception(mine.failure);
    ++next_take;
    holding = true;
    return mine.batch;
  }

  const std::shared_ptr<const TextDataset> dataset;
  const LoaderPlan plan;
  const std::int64_t steps, accumulation;
  std::vector<std::uint8_t> all_inputs;
  std::vector<std::int32_t> all_targets;
  std::vector<Slot> slots;
  std::mutex step_counts_mutex;
  std::deque<StepCount> step_counts;
  std::mutex mutex;
  std::condition_variable slot_free, slot_full;
  bool started = false, ending = false, holding = false;
  std::int64_t first_step = 0;  // counted over the epochs
  std::int64_t next_fill = 0, next_take = 0, filling = 0;
  double waited_seconds = 0;
  std::vector<std::thread> threads;  // last: they use all of the above
};

Loader::Loader(std::shared_ptr<const TextDataset> dataset, const LoaderPlan& plan)
    : state_(std::make_unique<State>(std::move(dataset), plan)) {}
Loader::~Loader() = default;

void Loader::seek(std::int64_t epoch, std::int64_t step) {
  if (epoch < 0 || step < 0 || step >= state_->steps || (state_->plan.evaluation && epoch != 0)) {
    throw Error(cat("cannot start at epoch ", epoch, ", step ", step, ": an epoch of ", state_->dataset->index().prefix,
                    " has ", state_->steps, " steps"),
                "was the data set or the batch changed since the checkpoint?");
  }
  state_->seek(epoch * state_->steps + step);
}

const MicroBatch& Loader::next() {
  return state_->next();
}
double Loader::waited_seconds() const {
  return state_->waited_seconds;
}

std::int64_t Loader::memory_bytes(const LoaderPlan& plan) {
  return slots_of(plan) * static_cast<std::int64_t>(slot_positions(plan) * (sizeof(std::uint8_t) + sizeof(std::int32_t)));
}

}  // namespace ringtrain
