#include "cluster/mpi_sums.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/error.h"
#include "cluster/communicator.h"

namespace ringtrain {

void MpiSteps::start(std::span<double> values, SumSchedule schedule) {
  if (values.size() > 0x7fffffff) throw Error(cat(values.size(), " numbers are more than a message takes"));
  values_ = values;
  schedule_ = std::move(schedule);
  next_ = 0;
  if (!schedule_.empty()) post(schedule_.front());
}

void MpiSteps::post(const SumStep& step) {
  if (step.adds) incoming_.resize(step.received.size());
  const auto values = [&](SumRange range) { return values_.subspan(range.begin, range.size()); };
  const std::span<double> target = step.adds ? std::span(incoming_) : values(step.received);
  if (!target.empty()) post_receive(comm_, target, step.from, tag_, requests_[0]);
  if (step.sent.size() > 0) post_send(comm_, values(step.sent), step.to, tag_, requests_[1]);
}

bool MpiSteps::progress() {
  while (next_ < schedule_.size()) {
    if (!all_done(requests_)) return false;
    const SumStep& step = schedule_[next_];
    if (step.adds)
      for (std::size_t i = 0; i < incoming_.size(); ++i) values_[step.received.begin + i] += incoming_[i];
    if (++next_ < schedule_.size()) post(schedule_[next_]);
  }
  return true;
}

void MpiCounterSums::start(std::span<double> values, const PartsLeft& left) {
  ++*left;
  sums_.push_back({values, left});
  if (sums_.size() == 1) begin_first();
  progress();
}

void MpiCounterSums::begin_first() {
  const std::span<double> values = sums_.front().values;
  steps_.start(values, halving_sum(rank_, size_, values.size(), 1));
}

void MpiCounterSums::progress() {
  while (!sums_.empty() && steps_.progress()) {
    --*sums_.front().left;
    sums_.pop_front();
    if (!sums_.empty()) begin_first();
  }
}

void MpiLibrarySums::start(std::span<float> values, const PartsLeft& left) {
  ++*left;
  Sum& sum = sums_.emplace_back(Sum{MPI_REQUEST_NULL, left});
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, comm_,
                           &sum.request),
            "MPI_Iallreduce");
  sent_bytes().by_message += 2 * ring_half_bytes(std::ssize(std::as_bytes(values)), group_.size());
}

void MpiLibrarySums::progress() {
  std::erase_if(sums_, [](Sum& sum) {
    int done = 0;
    check_mpi(MPI_Test(&sum.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) --*sum.left;
    return done != 0;
  });
}

static constexpr std::size_t kIncomingChunks = 16;  // chunks of all ranks together; at least one per rank

MpiRootSums::MpiRootSums(const RankGroup& group, MPI_Comm comm, int sum_tag, int broadcast_tag, std::size_t chunk)
    : comm_(comm),
      sum_tag_(sum_tag),
      broadcast_tag_(broadcast_tag),
      rank_(group.rank()),
      size_(group.size()),
      chunk_(chunk),
      window_(std::max<std::size_t>(1, kIncomingChunks / static_cast<std::size_t>(size_))) {}

void MpiRootSums::start_sum(std::span<float> values, int root, const PartsLeft& left) {
  for (std::size_t at = 0; at < values.size(); at += chunk_) {
    const std::span<float> chunk = values.subspan(at, std::min(chunk_, values.size() - at));
    ++*left;
    if (rank_ == root) {
      sums_.push_back({.values = chunk, .left = left});
      if (sums_.size() <= window_) post_receives(sums_.back());
      continue;
    }
    Part& part = transfers_.emplace_back(Part{.values = chunk, .left = left});
    post_send(comm_, chunk, root, sum_tag_, part.requests.emplace_back(MPI_REQUEST_NULL));
  }
}

void MpiRootSums::start_broadcast(std::span<float> values, int root, const PartsLeft& left) {
  for (std::size_t at = 0; at < values.size(); at += chunk_) {
    const std::span<float> chunk = values.subspan(at, std::min(chunk_, values.size() - at));
    ++*left;
    Part& part = transfers_.emplace_back(Part{.values = chunk, .left = left});
    part.requests.assign(rank_ == root ? static_cast<std::size_t>(size_) : 1, MPI_REQUEST_NULL);
    if (rank_ != root) post_receive(comm_, chunk, root, broadcast_tag_, part.requests[0]);
    for (int r = 0; rank_ == root && r < size_; ++r)
      if (r != root) post_send(comm_, chunk, r, broadcast_tag_, part.requests[static_cast<std::size_t>(r)]);
  }
}

void MpiRootSums::post_receives(Part& part) {
  part.incoming.resize(static_cast<std::size_t>(size_));
  part.requests.assign(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto index = static_cast<std::size_t>(r);
    if (!free_.empty()) {
      part.incoming[index] = std::move(free_.back());
      free_.pop_back();
    }
    part.incoming[index].resize(chunk_);
    const std::span<float> chunk(part.incoming[index].data(), part.values.size());
    post_receive(comm_, chunk, r, sum_tag_, part.requests[index]);
  }
}

// Adds the values of all ranks in the order of the ranks, including this rank's own values.
void MpiRootSums::add(Part& part) {
  const std::size_t count = part.values.size();
  for (int r = 0; r < size_; ++r) {
    std::vector<float>& arrived = part.incoming[static_cast<std::size_t>(r)];
    const float* from = r == rank_ ? part.values.data() : arrived.data();
    if (r == 0) {
      total_.assign(from, from + count);
    } else {
      for (std::size_t i = 0; i < count; ++i) total_[i] += from[i];
    }
    if (r != rank_) free_.push_back(std::move(arrived));
  }
  std::copy(total_.begin(), total_.end(), part.values.begin());
}

void MpiRootSums::progress() {
  std::erase_if(transfers_, [](Part& part) {
    if (!all_done(part.requests)) return false;
    --*part.left;
    return true;
  });
  while (!sums_.empty() && all_done(sums_.front().requests)) {
    add(sums_.front());
    --*sums_.front().left;
    sums_.pop_front();
    if (sums_.size() >= window_) post_receives(sums_[window_ - 1]);
  }
}

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
  const int tag = static_cast<int>(slot_index);
  const std::size_t received = step.received.size();
  slot.is_posted = true;
  if (received > 0) {
    if (lane.shared && node_->reaches(step.from)) {
      slot.awaits_values = true;
    } else {
      if (step.adds && slot.incoming.size() < received) slot.incoming.resize(received);
      float* target = step.adds ? slot.incoming.data() : lane.values + step.received.begin;
      post_receive(comm_, std::span(target, received), step.from, tag, requests_[2 * slot_index]);
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
      post_send(comm_, sent, step.to, tag, requests_[2 * slot_index + 1]);
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
