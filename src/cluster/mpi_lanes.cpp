#include "cluster/mpi_lanes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cluster/sent_bytes.h"

namespace ringtrain {
namespace {

void add(float* __restrict into, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

static_assert(small_sum <= NodeExchange::most_copied);

}  // namespace

void MpiLanes::start(float* values, SumSchedule schedule, const PartsLeft& left) {
  ++*left;
  const std::size_t number = lanes_started_++, index = number % slots;
  Slot& slot = slots_[index];
  const bool shared = node_ != nullptr && node_->holds(values);
  slot.lanes.push_back({number, values, std::move(schedule), left, shared});
  if (slot.lanes.size() > 1) return;
  ++busy_slots_;
  run(index);
}

// Posts the slot's next step that has messages, unless that step must wait. A lane without another such step is done.
void MpiLanes::run(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  for (; !slot.lanes.empty(); slot.lanes.pop_front(), slot.step = 0) {
    for (const std::size_t steps = slot.lanes.front().schedule.size(); slot.step < steps; ++slot.step) {
      if (must_wait(slot)) return;
      post(slot_index);
      if (slot.is_open()) return;
      slot.is_posted = false;
    }
    --*slot.lanes.front().left;
  }
  --busy_slots_;
}

bool MpiLanes::must_wait(const Slot& slot) const {
  const auto in_node = [](const Slot& s) { return !s.lanes.empty() && s.lanes.front().schedule[s.step].in_node; };
  const auto is_older = [&](const Slot& s) { return s.lanes.front().number < slot.lanes.front().number; };
  return in_node(slot) &&
         std::ranges::count_if(slots_, [&](const Slot& s) { return in_node(s) && is_older(s); }) >= lanes_in_node;
}

void MpiLanes::post(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const Lane& lane = slot.lanes.front();
  const SumStep& step = lane.schedule[slot.step];
  const int tag = static_cast<int>(slot_index), received = static_cast<int>(step.received.size());
  slot.is_posted = true;
  if (received > 0) {
    if (lane.shared && node_->reaches(step.from)) {
      slot.awaits_values = true;
    } else {
      if (step.adds && slot.incoming.size() < step.received.size()) slot.incoming.resize(step.received.size());
      float* target = step.adds ? slot.incoming.data() : lane.values + step.received.begin;
      check_mpi(MPI_Irecv(target, received, MPI_FLOAT, step.from, tag, comm_, &requests_[2 * slot_index]), "MPI_Irecv");
      ++slot.open_requests;
    }
  }
  const std::span<const float> sent(lane.values + step.sent.begin, step.sent.size());
  if (!sent.empty()) {
    if (lane.shared && node_->reaches(step.to)) {
      // In a small sum, both ranks exchange all values. The other rank gets a copy of this rank's values, because this
      // rank may add to the values before the other rank has read them.
      const bool overlap = step.adds && step.sent.begin < step.received.end && step.received.begin < step.sent.end;
      overlap ? node_->send_copy(step.to, tag, sent) : node_->send(step.to, tag, sent);
      sent_bytes().through_memory += std::ssize(std::as_bytes(sent));
      slot.awaits_reader = true;
    } else {
      check_mpi(MPI_Isend(sent.data(), static_cast<int>(sent.size()), MPI_FLOAT, step.to, tag, comm_,
                          &requests_[2 * slot_index + 1]),
                "MPI_Isend");
      sent_bytes().by_message += std::ssize(std::as_bytes(sent));
      ++slot.open_requests;
    }
  }
  open_requests_ += slot.open_requests;
}

void MpiLanes::test_requests() {
  int count = 0;
  check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                         MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  if (count == MPI_UNDEFINED) return;
  for (int i = 0; i < count; ++i)
    --slots_[static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]) / 2].open_requests;
  open_requests_ -= count;
}

// Reads the other rank's values of the step if that rank has offered them. Also checks whether this rank's values have
// been read.
void MpiLanes::exchange_in_node(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const int number = static_cast<int>(slot_index);
  const Lane& lane = slot.lanes.front();
  const SumStep& step = lane.schedule[slot.step];
  if (slot.awaits_values) {
    if (const float* values = node_->receive(step.from, number)) {
      float* target = lane.values + step.received.begin;
      if (step.adds)
        add(target, values, step.received.size());
      else
        std::copy_n(values, step.received.size(), target);
      node_->has_read(step.from, number);
      slot.awaits_values = false;
    }
  }
  if (slot.awaits_reader && node_->is_read(step.to, number)) slot.awaits_reader = false;
}

void MpiLanes::end_step(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const Lane& lane = slot.lanes.front();
  const SumStep& step = lane.schedule[slot.step];
  if (step.adds && !(lane.shared && node_->reaches(step.from)))
    add(lane.values + step.received.begin, slot.incoming.data(), step.received.size());
  slot.is_posted = false;
  ++slot.step;
  run(slot_index);
}

void MpiLanes::progress() {
  for (bool advances = true; advances && busy_slots_ > 0;) {
    advances = false;
    if (open_requests_ > 0) test_requests();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.awaits_values || slot.awaits_reader) exchange_in_node(i);
      if (!slot.is_posted || slot.is_open()) continue;
      end_step(i);
      advances = true;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i)  // tries again the lanes that had to wait
      if (!slots_[i].lanes.empty() && !slots_[i].is_posted) run(i);
  }
}

int MpiLanes::open_receives() const {
  int open = 0;
  for (std::size_t i = 0; i < requests_.size(); i += 2) open += requests_[i] != MPI_REQUEST_NULL ? 1 : 0;
  return open;
}

}  // namespace ringtrain
