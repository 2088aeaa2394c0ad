// The loader has a ring of slots. Micro-batch k since the last seek is in slot k mod (prefetch + 1). A micro-batch has
// parts (BatchPart), which are numbered through all micro-batches. A thread takes the next part whose slot is free and
// fills it without a lock. next() returns the slots in order.
//
//   text      fillers: take a part, fill it
//   images  readers: take a part, read its record ──► ready ──► fillers: decode it into the slot
//
// Readers mostly wait for files. Many of them hide the latency of a network file system and need no core.
#include "data/loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/system_limits.h"
#include "data/batch_source.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

constexpr double page_cache_seconds = 200e-6;  // a longer read has waited for a disk or a server

}  // namespace

struct Loader::State {
  enum class SlotState { empty, filling, full };
  struct Slot {
    SlotState state = SlotState::empty;
    MicroBatch batch;
    BatchSpace space;
    std::int64_t parts_left = 0;
    std::exception_ptr failure;  // error of the first part that failed
    std::int64_t failed_part = 0;
  };
  struct Work {
    Slot* slot = nullptr;
    BatchPart part;
    std::vector<std::uint8_t> record;
    std::int64_t record_bytes = 0;  // 0: no buffer
  };

  // The place of the next micro-batch to be filled.
  struct Place {
    Position position;  // epoch and offset of its global batch
    std::int64_t micro_step = 0;
    bool operator==(const Place&) const = default;
  };

  static LoaderPlan with_images(const Dataset& dataset, LoaderPlan plan) {
    choose_images(dataset, plan);
    return plan;
  }

  State(std::shared_ptr<const Dataset> given, const LoaderPlan& given_plan, std::unique_ptr<BatchSource> given_source)
      : dataset(std::move(given)),
        plan(with_images(*dataset, given_plan)),
        samples(samples_per_epoch(dataset->index(), plan)),
        steps(steps_per_epoch(dataset->index(), plan)),
        course(plan.evaluation || plan.course.stages.empty()
                   ? constant_course(plan.global_batch, samples, plan.course.keeps_rest)
                   : plan.course),
        sizes(ring_sizes(dataset->index(), plan)),
        source(given_source ? std::move(given_source) : make_batch_source(dataset, plan)),
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
      for (std::int64_t i = 0; i < sizes.readers; ++i)
        threads.push_back(start_thread(cat("reads records of ", dataset->index().prefix), [this] { read_records(); }));
      for (const auto& filler : fillers)
        threads.push_back(start_thread(cat("prepares batches of ", dataset->index().prefix, " (data.loader_threads)"),
                                       [this, &filler] { fill_parts(*filler); }));
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
    buffer_free.notify_all();
    record_ready.notify_all();
    for (std::thread& thread : threads) thread.join();
    warn_of_unused();
  }

  Slot& slot(std::int64_t k) { return slots[static_cast<std::size_t>(k) % slots.size()]; }

  // Returns the position of the next global batch. A run may begin anywhere in its first epoch; later epochs begin at
  // their first sample. An evaluation starts over at its end.
  Position after(const Position& position) const {
    if (!plan.evaluation) return course.after(position);
    return {0, 0, 0, (position.offset / plan.global_batch + 1) % steps * plan.global_batch};
  }

  // ---- These functions are called under the lock.

  bool can_take() {
    if (next_part % sizes.parts > 0) return started;
    if (plan.on_request && next_place.micro_step == 0 && requested.empty()) return false;
    return started && slot(next_part / sizes.parts).state == SlotState::empty;
  }

  Work take() {
    if (plan.on_request && next_place.micro_step == 0 && next_part % sizes.parts == 0) {
      next_place.position = requested.front();
      requested.pop_front();
    }
    const std::int64_t batch = course.batch_at(next_place.position);
    const RowRange rows = rows_of_rank(plan, batch);
    Work work;
    work.slot = &slot(next_part / sizes.parts);
    work.part.epoch = next_place.position.epoch;
    work.part.offset = next_place.position.offset;
    work.part.batch = batch;
    work.part.micro_step = next_place.micro_step;
    work.part.part = next_part % sizes.parts;
    work.part.first_row = first_row_of_pass(plan, rows, work.part.micro_step);
    if (work.part.part == 0) {
      Slot& mine = *work.slot;
      mine.state = SlotState::filling;
      mine.parts_left = sizes.parts;
      mine.failure = nullptr;
      mine.batch.epoch = work.part.epoch;
      mine.batch.offset = work.part.offset;
      mine.batch.micro_step = work.part.micro_step;
      mine.batch.first_row = work.part.first_row;
    }
    ++next_part;
    ++taken;
    if (next_part % sizes.parts > 0) return work;
    next_place.micro_step += 1;
    if (next_place.micro_step * plan.micro_batch == rows.count) next_place = {after(next_place.position), 0};
    return work;
  }

  // The place of the micro-batch that next() returns.
  Place place_to_return() {
    if (next_part <= next_take * sizes.parts) return next_place;
    const MicroBatch& batch = slot(next_take).batch;
    return {{0, 0, batch.epoch, batch.offset}, batch.micro_step};
  }

  void finish(Work& work, const std::exception_ptr& failure = nullptr) {
    Slot& mine = *work.slot;
    if (failure != nullptr && (mine.failure == nullptr || work.part.part < mine.failed_part)) {
      mine.failure = failure;
      mine.failed_part = work.part.part;
    }
    if (--mine.parts_left == 0) mine.state = SlotState::full;
    --taken;
    if (mine.state == SlotState::full || taken == 0) slot_full.notify_all();
    give_back_buffer(work);
  }

  bool fits_buffer(std::int64_t bytes) const { return bytes <= sizes.buffer_bytes; }
  bool can_take_buffer(std::int64_t bytes) const {
    return fits_buffer(bytes) ? buffers_out < sizes.buffers : oversize_out + bytes <= sizes.oversize_bytes;
  }

  void take_buffer(Work& work, std::int64_t bytes) {
    work.record_bytes = bytes;
    if (!fits_buffer(bytes)) {
      oversize_out += bytes;
      return;
    }
    ++buffers_out;
    if (spare_buffers.empty()) {
      work.record.reserve(static_cast<std::size_t>(sizes.buffer_bytes));
    } else {
      work.record = std::move(spare_buffers.back());  // the newest one, which may still be in caches
      spare_buffers.pop_back();
    }
  }

  void give_back_buffer(Work& work) {
    if (work.record_bytes == 0) return;
    if (fits_buffer(work.record_bytes)) {
      --buffers_out;
      spare_buffers.push_back(std::move(work.record));
    } else {
      oversize_out -= work.record_bytes;
      work.record = {};
    }
    // Readers wake when there are buffers for several records.
    if (readers_without_buffer > 0 && buffers_out <= sizes.buffers / 2) wake_readers(buffer_free);
  }

  // Waking a thread takes almost as long as decoding a small image. All readers are woken only if reads wait for files.
  // From the page cache, a single reader is faster than all decoders.
  void wake_readers(std::condition_variable& condition) {
    if (reads_wait || sizes.readers == 0) {
      condition.notify_all();
    } else {
      condition.notify_one();
    }
  }

  // Warns of the first error in batches that are discarded, because nothing else would report the unreadable file. Does
  // nothing if next() has thrown an error.
  void warn_of_unused() noexcept {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::exception_ptr failure = std::exchange(slot(next_take + static_cast<std::int64_t>(i)).failure, nullptr);
      if (failure == nullptr || std::exchange(has_warned, true)) continue;
      try {
        std::rethrow_exception(failure);
      } catch (const Error& error) {
        log_warning(error.what(), "; the batch was read ahead, and is thrown away unused");
      } catch (...) {  // not an error of a file, and the batch is not needed
      }
    }
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
        ++readers_without_buffer;
        buffer_free.wait(lock, [&] { return ending || !started || can_take_buffer(bytes); });
        --readers_without_buffer;
        if (ending) return;
        if (started) {
          take_buffer(work, bytes);
          lock.unlock();
          const double begin = now_seconds();
          try {
            source->read(work.part, work.record);
          } catch (...) {
            failure = std::current_exception();
          }
          const bool waited = now_seconds() - begin > page_cache_seconds;
          lock.lock();
          if (waited && !reads_wait) {  // other readers may still sleep
            part_free.notify_all();
            buffer_free.notify_all();
          }
          reads_wait = waited;
        }
      }
      if (failure != nullptr || !started) {  // if not started, seek() waits for this part to end
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
      lock.lock();
      finish(work, failure);
    }
  }

  // ---- The trainer's thread

  void seek(const Place& place, std::int64_t batch) {
    std::unique_lock<std::mutex> lock(mutex);
    const bool has_batch = batch == 0 || course == constant_course(batch, samples, course.keeps_rest);
    // An evaluation that has ended is at its beginning again. Its prepared batches are kept.
    const bool already_there = started && has_batch && !plan.on_request && place_to_return() == place;
    if (already_there && slot(next_take).failure == nullptr) return;
    started = false;
    buffer_free.notify_all();
    for (; !ready.empty(); ready.pop_front()) finish(ready.front());
    slot_full.wait(lock, [&] { return taken == 0; });
    warn_of_unused();
    has_warned = false;
    for (Slot& each : slots) each.state = SlotState::empty;
    next_part = next_take = 0;
    requested.clear();
    holding = false;
    next_place = place;
    if (!has_batch) course = constant_course(batch, samples, course.keeps_rest);
    started = true;
    lock.unlock();
    part_free.notify_all();
  }

  void request(const Position& position) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      requested.push_back(position);
      started = true;
    }
    part_free.notify_all();
  }

  const MicroBatch& next() {
    std::unique_lock<std::mutex> lock(mutex);
    if (holding) {
      slot(next_take - 1).state = SlotState::empty;
      holding = false;
    }
    started = true;
    wake_readers(part_free);
    Slot& mine = slot(next_take);
    slot_full.wait(lock, [&] { return mine.state == SlotState::full; });
    if (mine.failure != nullptr) {
      has_warned = true;
      std::rethrow_exception(mine.failure);
    }
    ++next_take;
    holding = true;
    return mine.batch;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderPlan plan;
  const std::int64_t samples, steps;  // samples and steps of an epoch
  std::deque<Position> requested;     // global batches to read
  BatchCourse course;
  const RingSizes sizes;
  const std::unique_ptr<BatchSource> source;
  PageVector<std::uint8_t> all_inputs;
  PageVector<std::int32_t> all_targets;
  std::vector<Slot> slots;
  std::vector<std::unique_ptr<BatchFiller>> fillers;
  std::mutex mutex;
  std::condition_variable part_free, buffer_free, record_ready, slot_full;
  bool started = false, ending = false, holding = false;
  bool has_warned = false;     // whether next() or warn_of_unused() has reported an error since the last seek
  Place next_place;            // place of the micro-batch of next_part
  std::int64_t next_part = 0;  // next part to be filled, counted from the last seek
  std::int64_t taken = 0;      // number of parts that are being read, ready or being filled
  std::int64_t next_take = 0;  // micro-batch that next() will return
  std::deque<Work> ready;
  std::vector<std::vector<std::uint8_t>> spare_buffers;
  std::int64_t buffers_out = 0;   // number of buffers in use, at most sizes.buffers
  std::int64_t oversize_out = 0;  // bytes of records larger than a buffer, at most sizes.oversize_bytes
  std::int64_t readers_without_buffer = 0;
  bool reads_wait = true;            // whether the last read waited because the file was not in the page cache
  std::vector<std::thread> threads;  // the last member, because threads use all other members
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan, std::unique_ptr<BatchSource> source)
    : state_(std::make_unique<State>(std::move(dataset), plan, std::move(source))) {}
Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan)
    : Loader(std::move(dataset), plan, nullptr) {}
Loader::~Loader() = default;

void Loader::seek(std::int64_t epoch, std::int64_t offset, std::int64_t batch) {
  const Position position{0, 0, epoch, offset};
  const std::int64_t samples = state_->samples;
  const std::int64_t next = batch > 0 ? batch : state_->course.batch_at(position);
  const std::int64_t needed = state_->plan.evaluation || state_->course.keeps_rest ? 1 : next;
  const bool has_epoch = state_->plan.evaluation ? epoch == 0 : epoch >= 0;
  if (!has_epoch || offset < 0 || offset + needed > samples) {
    throw Error(cat("cannot start at epoch ", epoch, ", sample ", offset, ": an epoch of ",
                    state_->dataset->index().prefix, " has ", samples, " samples, and a batch takes ", next),
                "was the data set or the batch changed since the checkpoint?");
  }
  state_->seek({position, 0}, batch);
}

void Loader::request(std::int64_t epoch, std::int64_t offset) {
  state_->request({0, 0, epoch, offset});
}
void Loader::forget_requests() {
  state_->seek({}, 0);
}

const MicroBatch& Loader::next() {
  return state_->next();
}
std::vector<std::span<const std::byte>> Loader::ring() const {
  std::vector<std::span<const std::byte>> pieces = {pages_of(state_->all_inputs), pages_of(state_->all_targets)};
  std::erase_if(pieces, [](const auto& piece) { return piece.empty(); });  // a pipeline's later stages read no pixels
  return pieces;
}

std::int64_t Loader::memory_bytes(const DatasetIndex& index, const LoaderPlan& plan) {
  return ring_sizes(index, plan).memory_bytes();
}

}  // namespace ringtrain
