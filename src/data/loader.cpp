// The ring: micro-batch k of the run since the last seek lies in slot k mod (prefetch + 1). Its parts are numbered on
// from those of micro-batch k - 1; threads take the next part whose slot is free and fill it without a lock. next()
// hands the slots out in order.
//
//   text      fillers: take a part, fill it
//   pictures  readers: take a part, read its record ──► ready ──► fillers: decode it into the slot
//
// Readers only wait for files, so many of them hide the latency of a network file system and cost no core.
#include "data/loader.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/batch_source.h"
#include "data/row_plan.h"

namespace ringtrain {

struct Loader::State {
  enum class Phase { empty, filling, full };
  struct Slot {
    Phase phase = Phase::empty;
    MicroBatch batch;
    BatchSpace space;
    std::int64_t parts_left = 0;
    std::exception_ptr failure;  // of the first part that has one
    std::int64_t failed_part = 0;
  };
  struct Work {
    Slot* slot = nullptr;
    BatchPart part;
    std::vector<std::uint8_t> record;
    std::int64_t reserved = 0;  // bytes
  };

  State(std::shared_ptr<const Dataset> given, const LoaderPlan& given_plan)
      : dataset(std::move(given)),
        plan(given_plan),
        steps(steps_per_epoch(dataset->index(), plan)),
        accumulation(plan.rows / plan.micro_batch),
        sizes(ring_sizes(dataset->index(), plan)),
        source(make_batch_source(dataset, plan)),
        all_inputs(static_cast<std::size_t>(sizes.slots * sizes.inputs)),
        all_targets(static_cast<std::size_t>(sizes.slots * sizes.targets)),
        slots(static_cast<std::size_t>(sizes.slots)) {
    const auto inputs = static_cast<std::size_t>(sizes.inputs), targets = static_cast<std::size_t>(sizes.targets);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& each = slots[i];
      each.space = {&each.batch, std::span(all_inputs).subspan(i * inputs, inputs),
                    std::span(all_targets).subspan(i * targets, targets)};
      each.batch.inputs = each.space.inputs;
      each.batch.targets = each.space.targets;
    }
    for (std::int64_t i = 0; i < plan.threads; ++i) fillers.push_back(source->make_filler());
    try {
      for (std::int64_t i = 0; i < sizes.readers; ++i) threads.emplace_back([this] { read_records(); });
      for (const auto& filler : fillers) threads.emplace_back([this, &filler] { fill_parts(*filler); });
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
    part_free.notify_all();
    room_free.notify_all();
    record_ready.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Slot& slot(std::int64_t k) { return slots[static_cast<std::size_t>(k) % slots.size()]; }

  // ---- All of these: under the lock.

  bool can_take() {
    return started && (next_part % sizes.parts > 0 || slot(next_part / sizes.parts).phase == Phase::empty);
  }

  Work take() {
    const std::int64_t k = next_part / sizes.parts, global_step = first_step + k / accumulation;
    Work work;
    work.slot = &slot(k);
    work.part.epoch = plan.evaluation ? 0 : global_step / steps;
    work.part.step = global_step % steps;
    work.part.micro_step = k % accumulation;
    work.part.part = next_part % sizes.parts;
    work.part.first_row = plan.first_row + work.part.micro_step * plan.micro_batch;
    if (work.part.part == 0) {
      Slot& mine = *work.slot;
      mine.phase = Phase::filling;
      mine.parts_left = sizes.parts;
      mine.failure = nullptr;
      mine.batch.epoch = work.part.epoch;
      mine.batch.step = work.part.step;
      mine.batch.micro_step = work.part.micro_step;
      mine.batch.first_row = work.part.first_row;
    }
    ++next_part;
    ++taken;
    return work;
  }

  void finish(const Work& work, const std::exception_ptr& failure = nullptr) {
    Slot& mine = *work.slot;
    if (failure != nullptr && (mine.failure == nullptr || work.part.part < mine.failed_part)) {
      mine.failure = failure;
      mine.failed_part = work.part.part;
    }
    if (--mine.parts_left == 0) mine.phase = Phase::full;
    --taken;
    if (mine.phase == Phase::full || taken == 0) slot_full.notify_all();
    if (work.reserved == 0) return;
    reserved -= work.reserved;
    // Readers are woken for several records at once: waking one takes as long as decoding a small picture.
    if (waiting_for_room > 0 && reserved <= sizes.records / 2) room_free.notify_all();
  }

  // ---- Threads

  void read_records() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      part_free.wait(lock, [&] { return ending || can_take(); });
      if (ending) return;
      Work work = take();
      std::int64_t bytes = 0;
      std::exception_ptr failure;
      lock.unlock();
      try {
        bytes = source->record_bytes(work.part);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure == nullptr && bytes > 0) {
        ++waiting_for_room;
        room_free.wait(lock, [&] { return ending || !started || reserved + bytes <= sizes.records; });
        --waiting_for_room;
        if (ending) return;
        if (started) {
          reserved += bytes;
          work.reserved = bytes;
          lock.unlock();
          try {
            source->read(work.part, work.record);
          } catch (...) {
            failure = std::current_exception();
          }
          lock.lock();
        }
      }
      if (failure != nullptr || !started) {  // not started: seek() waits for this part to be given up
        finish(work, failure);
      } else {
        ready.push_back(std::move(work));
        record_ready.notify_one();
      }
    }
  }

  void fill_parts(BatchFiller& filler) {
    const bool with_records = sizes.readers > 0;
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      if (with_records) {
        record_ready.wait(lock, [&] { return ending || !ready.empty(); });
      } else {
        part_free.wait(lock, [&] { return ending || can_take(); });
      }
      if (ending) return;
      Work work = with_records ? std::move(ready.front()) : take();
      if (with_records) ready.pop_front();
      std::exception_ptr failure;
      lock.unlock();
      try {
        filler.fill(work.part, work.record, work.slot->space);
      } catch (...) {
        failure = std::current_exception();
      }
      work.record = {};  // before its room is given to others
      lock.lock();
      finish(work, failure);
    }
  }

  // ---- The trainer's thread

  void seek(std::int64_t global_step) {
    std::unique_lock<std::mutex> lock(mutex);
    // An evaluation that ended where it began again needs nothing thrown away.
    const std::int64_t next_step = first_step + next_take / accumulation;
    const bool already_there = started && next_take % accumulation == 0 &&
                               (plan.evaluation ? next_step % steps == global_step : next_step == global_step);
    if (already_there && slot(next_take).failure == nullptr) return;
    started = false;
    room_free.notify_all();
    for (; !ready.empty(); ready.pop_front()) finish(ready.front());
    slot_full.wait(lock, [&] { return taken == 0; });
    for (Slot& each : slots) each.phase = Phase::empty;
    next_part = next_take = 0;
    holding = false;
    first_step = global_step;
    started = true;
    lock.unlock();
    part_free.notify_all();
  }

  const MicroBatch& next() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex);
    if (holding) {
      slot(next_take - 1).phase = Phase::empty;
      holding = false;
    }
    started = true;
    part_free.notify_all();
    Slot& mine = slot(next_take);
    slot_full.wait(lock, [&] { return mine.phase == Phase::full; });
    waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (mine.failure != nullptr) std::rethrow_exception(mine.failure);
    ++next_take;
    holding = true;
    return mine.batch;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderPlan plan;
  const std::int64_t steps, accumulation;
  const RingSizes sizes;
  const std::unique_ptr<BatchSource> source;
  std::vector<std::uint8_t> all_inputs;
  std::vector<std::int32_t> all_targets;
  std::vector<Slot> slots;
  std::vector<std::unique_ptr<BatchFiller>> fillers;
  std::mutex mutex;
  std::condition_variable part_free, room_free, record_ready, slot_full;
  bool started = false, ending = false, holding = false;
  std::int64_t first_step = 0;  // counted over the epochs
  std::int64_t next_part = 0;   // to be filled, since the last seek
  std::int64_t taken = 0;       // parts that are read, ready or filled
  std::int64_t next_take = 0;   // micro-batch that next() returns
  std::deque<Work> ready;
  std::int64_t reserved = 0;  // bytes of records, at most sizes.records
  std::int64_t waiting_for_room = 0;
  double waited_seconds = 0;
  std::vector<std::thread> threads;  // last: they use all of the above
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan)
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

std::int64_t Loader::memory_bytes(const DatasetIndex& index, const LoaderPlan& plan) {
  const RingSizes sizes = ring_sizes(index, plan);
  return sizes.slots * (sizes.inputs + sizes.targets * static_cast<std::int64_t>(sizeof(std::int32_t))) + sizes.records;
}

}  // namespace ringtrain
