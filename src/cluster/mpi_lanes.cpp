#include "cluster/mpi_lanes.h"

#include <algorithm>
#include <utility>

namespace ringtrain {
namespace {

void add(float* __restrict into, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

}  // namespace

void MpiLanes::start(float* values, SumSchedule schedule, const PartsLeft& left) {
  ++*left;
  const std::size_t number = lanes_started_++, index = number % slots;
  Slot& slot = slots_[index];
  slot.lanes.push_back({number, values, std::move(schedule), left});
  if (slot.lanes.size() > 1) return;
  ++busy_slots_;
  run(index);
}

// Posts the messages of the slot's next step that has any, unless it must wait; the lanes that have none left are done.
void MpiLanes::run(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  for (; !slot.lanes.empty(); slot.lanes.pop_front(), slot.step = 0) {
    for (const std::size_t steps = slot.lanes.front().schedule.size(); slot.step < steps; ++slot.step) {
      if (must_wait(slot)) return;
      post(slot_index);
      if (slot.open_requests > 0) return;
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
  if (received > 0) {
    if (step.adds && slot.incoming.size() < step.received.size()) slot.incoming.resize(step.received.size());
    float* target = step.adds ? slot.incoming.data() : lane.values + step.received.begin;
    check_mpi(MPI_Irecv(target, received, MPI_FLOAT, step.from, tag, comm_, &requests_[2 * slot_index]), "MPI_Irecv");
    ++slot.open_requests;
  }
  if (step.sent.size() > 0) {
    check_mpi(MPI_Isend(lane.values + step.sent.begin, static_cast<int>(step.sent.size()), MPI_FLOAT, step.to, tag,
                        comm_, &requests_[2 * slot_index + 1]),
              "MPI_Isend");
    ++slot.open_requests;
  }
}

void MpiLanes::progress() {
  while (busy_slots_ > 0) {
    int count = 0;
    check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                           MPI_STATUSES_IGNORE),
              "MPI_Testsome");
    if (count == 0 || count == MPI_UNDEFINED) return;
    for (int i = 0; i < count; ++i) {
      const std::size_t index = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]) / 2;
      Slot& slot = slots_[index];
      if (--slot.open_requests > 0) continue;
      const Lane& lane = slot.lanes.front();
      const SumStep& step = lane.schedule[slot.step];
      if (step.adds) add(lane.values + step.received.begin, slot.incoming.data(), step.received.size());
      ++slot.step;
      run(index);
    }
    for (std::size_t i = 0; i < slots_.size(); ++i)  // lanes that had to wait
      if (!slots_[i].lanes.empty() && slots_[i].open_requests == 0) run(i);
  }
}

void MpiLanes::take_requests(std::vector<MPI_Request>& receives, std::vector<MPI_Request>& sends) const {
  for (std::size_t i = 0; i < requests_.size(); ++i) (i % 2 == 0 ? receives : sends).push_back(requests_[i]);
}

void MpiLanes::forget() {
  std::ranges::fill(requests_, MPI_REQUEST_NULL);
  slots_.assign(slots, {});
  busy_slots_ = 0;
}

}  // namespace ringtrain
