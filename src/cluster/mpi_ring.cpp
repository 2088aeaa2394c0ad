// The ring all-reduce and its small companions on MPI point-to-point messages.
//
// A vector is cut into lanes of p x chunk elements, a lane into p pieces. In step s every rank sends piece (rank - s)
// to its right neighbour and receives piece (rank - s - 1) from the left one (indices modulo p):
//
//   steps 0 .. p-2     reduce-scatter   what arrives is added to the own piece
//   steps p-1 .. 2p-3  all-gather       what arrives is a finished piece and replaces the own one
//
//   p = 3, rank 0:  send 0, add 2 | send 2, add 1 | send 1, take 0 | send 0, take 2        (each rank sends 4/3 x lane)
//
// Each element is summed once, on one rank, and then copied, so all ranks end with the same bits.
// Lanes of all collectives are numbered in the order of starting, the same on all ranks, and lane j travels in slot
// j mod kSlots. A slot works off its lanes one after the other and owns a tag; the slots run side by side. So a message
// finds its receiver by slot and order alone, whatever the order in which ranks advance slots or wait for collectives.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>

#include "base/error.h"
#include "cluster/communicator.h"
#include "cluster/mpi_check.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t kSlots = 16;
constexpr std::size_t kCacheLine = 16;  // floats
constexpr int kCounterTag = kSlots, kGatherTag = kSlots + 1, kScatterTag = kSlots + 2;

using PartsLeft = std::shared_ptr<std::size_t>;  // lanes of a collective that still travel

void add(float* __restrict into, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

struct Lane {
  float* values = nullptr;
  std::size_t length = 0, piece_length = 0;
  PartsLeft left;
};

struct Slot {
  std::deque<Lane> lanes;  // front: under way
  std::vector<float> incoming;
  int step = -1;
  int open_requests = 0;
};

// Recursive doubling: in round k partners rank and rank ^ 2^k exchange and add; log2(p) rounds, same bits on both sides
// because a + b = b + a. Ranks beyond the largest power of two hand their values to a partner first and get the result
// last. Rabenseifner 2004, section 2. For a few values, where latency is all.
struct CounterSum {
  std::span<double> values;
  std::vector<double> incoming;
  PartsLeft left;
  int round = -1;
  bool add_incoming = false;
};

class MpiRing final : public Communicator {
 public:
  MpiRing(MPI_Comm comm, std::size_t chunk_bytes, std::size_t max_count);  // takes the MPI communicator
  ~MpiRing() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override;
  std::unique_ptr<Pending> start_sum(std::span<float> values) override;
  std::unique_ptr<Pending> start_sum(std::span<double> values) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void gather(std::span<const float> mine, std::span<float> all, int root) override;
  void scatter(std::span<const float> all, std::span<float> mine, int root) override;
  void barrier() override;

  void progress();

 private:
  void progress_ring();
  void progress_counters();
  void advance(std::size_t slot_index);
  void post(std::size_t slot_index);
  bool post_counter_round(CounterSum& sum);
  std::span<float> piece(const Lane& lane, int step) const;
  void complete(std::vector<MPI_Request>& requests);
  void check_root(int root) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, left_ = 0, right_ = 0;
  std::size_t chunk_ = 0, max_count_ = 0;  // elements
  std::vector<Slot> slots_{kSlots};
  std::vector<MPI_Request> requests_ = std::vector<MPI_Request>(2 * kSlots, MPI_REQUEST_NULL);  // slot: receive, send
  std::vector<int> completed_ = std::vector<int>(2 * kSlots);
  std::size_t next_slot_ = 0;
  int busy_slots_ = 0;
  std::deque<CounterSum> counter_sums_;  // front: under way
  MPI_Request counter_requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

class PendingSum final : public Pending {
 public:
  PendingSum(MpiRing& ring, PartsLeft left) : ring_(ring), left_(std::move(left)) {}
  // The ring still uses the buffer, so an abandoned sum is finished first; not while an exception ends the job, when
  // the other ranks may never answer.
  ~PendingSum() override {
    if (*left_ == 0 || std::uncaught_exceptions() > 0) return;
    try {
      wait(*this);
    } catch (...) {
      std::abort();  // MPI failed while it holds memory that is about to be freed
    }
  }
  bool done() override {
    if (*left_ != 0) ring_.progress();
    return *left_ == 0;
  }

 private:
  MpiRing& ring_;
  PartsLeft left_;
};

MpiRing::MpiRing(MPI_Comm comm, std::size_t chunk_bytes, std::size_t max_count) : comm_(comm) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  right_ = (rank_ + 1) % size_;
  left_ = (rank_ + size_ - 1) % size_;
  max_count_ = std::clamp(max_count, std::size_t{1}, std::size_t{0x7fffffff});
  chunk_ = std::clamp(chunk_bytes / sizeof(float), std::size_t{1}, max_count_);
  if (chunk_ > kCacheLine) chunk_ -= chunk_ % kCacheLine;
}

MpiRing::~MpiRing() {
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

std::string MpiRing::describe() const {
  if (size_ == 1) return "one rank, nothing to communicate";
  const std::size_t bytes = chunk_ * sizeof(float);
  return bytes % 1024 == 0 ? cat("MPI ring, chunks of ", bytes / 1024, " KiB")
                           : cat("MPI ring, chunks of ", bytes, " bytes");
}

std::unique_ptr<Pending> MpiRing::start_sum(std::span<float> values) {
  auto left = std::make_shared<std::size_t>(0);
  const auto ranks = static_cast<std::size_t>(size_);
  if (size_ > 1) {
    for (std::size_t offset = 0; offset < values.size();) {
      Lane lane;
      lane.values = values.data() + offset;
      lane.length = std::min(values.size() - offset, ranks * chunk_);
      lane.piece_length = (lane.length + ranks - 1) / ranks;
      if (chunk_ >= kCacheLine) lane.piece_length = (lane.piece_length + kCacheLine - 1) / kCacheLine * kCacheLine;
      lane.left = left;
      ++*left;
      offset += lane.length;
      Slot& slot = slots_[next_slot_];
      slot.lanes.push_back(std::move(lane));
      if (slot.lanes.size() == 1) {
        ++busy_slots_;
        advance(next_slot_);
      }
      next_slot_ = (next_slot_ + 1) % kSlots;
    }
  }
  return std::make_unique<PendingSum>(*this, std::move(left));
}

// The piece that this rank sends in `step`; it receives the one that it sends in step + 1. The last may be shorter or
// empty: then both sides leave the message out.
std::span<float> MpiRing::piece(const Lane& lane, int step) const {
  const auto index = static_cast<std::size_t>(((rank_ - step) % size_ + size_) % size_);
  const std::size_t begin = std::min(lane.length, index * lane.piece_length);
  return {lane.values + begin, std::min(lane.length - begin, lane.piece_length)};
}

void MpiRing::post(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const Lane& lane = slot.lanes.front();
  const int tag = static_cast<int>(slot_index);
  const std::span<float> received = piece(lane, slot.step + 1), sent = piece(lane, slot.step);
  slot.open_requests = 0;
  if (!received.empty()) {
    const bool adding = slot.step < size_ - 1;
    if (adding && slot.incoming.size() < received.size()) slot.incoming.resize(chunk_);
    float* target = adding ? slot.incoming.data() : received.data();
    check_mpi(
        MPI_Irecv(target, static_cast<int>(received.size()), MPI_FLOAT, left_, tag, comm_, &requests_[2 * slot_index]),
        "MPI_Irecv");
    ++slot.open_requests;
  }
  if (!sent.empty()) {
    check_mpi(MPI_Isend(sent.data(), static_cast<int>(sent.size()), MPI_FLOAT, right_, tag, comm_,
                        &requests_[2 * slot_index + 1]),
              "MPI_Isend");
    ++slot.open_requests;
  }
}

// Takes the slot from a finished step (or from idleness) to the next one that has a message.
void MpiRing::advance(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  do {
    if (slot.step >= 0 && slot.step < size_ - 1) {
      const std::span<float> received = piece(slot.lanes.front(), slot.step + 1);
      add(received.data(), slot.incoming.data(), received.size());
    }
    ++slot.step;
    if (slot.step == 2 * (size_ - 1)) {
      --*slot.lanes.front().left;
      slot.lanes.pop_front();
      slot.step = slot.lanes.empty() ? -1 : 0;
      if (slot.lanes.empty()) {
        --busy_slots_;
        return;
      }
    }
    post(slot_index);
  } while (slot.open_requests == 0);
}

void MpiRing::progress() {
  if (busy_slots_ > 0) progress_ring();
  if (!counter_sums_.empty()) progress_counters();
}

void MpiRing::progress_ring() {
  while (busy_slots_ > 0) {
    int count = 0;
    check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                           MPI_STATUSES_IGNORE),
              "MPI_Testsome");
    if (count == 0 || count == MPI_UNDEFINED) return;
    for (int i = 0; i < count; ++i) {
      const std::size_t slot = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]) / 2;
      if (--slots_[slot].open_requests == 0) advance(slot);
    }
  }
}

std::unique_ptr<Pending> MpiRing::start_sum(std::span<double> values) {
  auto left = std::make_shared<std::size_t>(0);
  if (size_ > 1) {
    for (std::size_t offset = 0; offset < values.size(); offset += max_count_) {
      CounterSum& sum = counter_sums_.emplace_back();
      sum.values = values.subspan(offset, std::min(max_count_, values.size() - offset));
      sum.left = left;
      ++*left;
    }
    progress_counters();
  }
  return std::make_unique<PendingSum>(*this, std::move(left));
}

// Rounds: 0 take from the rank beyond the power of two; 1.. exchange; last: give back. False when there is none left.
bool MpiRing::post_counter_round(CounterSum& sum) {
  int power = 1, exchanges = 0;
  while (2 * power <= size_) power *= 2, ++exchanges;
  const int beyond = size_ - power, last = exchanges + 1;
  const int count = static_cast<int>(sum.values.size());
  while (++sum.round <= last) {
    int from = MPI_PROC_NULL, to = MPI_PROC_NULL;
    if (rank_ >= power) {
      if (sum.round == 0) to = rank_ - power;
      if (sum.round == last) from = rank_ - power;
    } else if (sum.round == 0 || sum.round == last) {
      if (rank_ < beyond) (sum.round == 0 ? from : to) = rank_ + power;
    } else {
      from = to = rank_ ^ (1 << (sum.round - 1));
    }
    if (from == MPI_PROC_NULL && to == MPI_PROC_NULL) continue;
    sum.add_incoming = from != MPI_PROC_NULL && sum.round != last;
    sum.incoming.resize(sum.values.size());
    double* target = sum.round == last ? sum.values.data() : sum.incoming.data();
    if (from != MPI_PROC_NULL)
      check_mpi(MPI_Irecv(target, count, MPI_DOUBLE, from, kCounterTag, comm_, &counter_requests_[0]), "MPI_Irecv");
    if (to != MPI_PROC_NULL)
      check_mpi(MPI_Isend(sum.values.data(), count, MPI_DOUBLE, to, kCounterTag, comm_, &counter_requests_[1]),
                "MPI_Isend");
    return true;
  }
  return false;
}

void MpiRing::progress_counters() {
  while (!counter_sums_.empty()) {
    int done = 0;
    check_mpi(MPI_Testall(2, counter_requests_, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (!done) return;
    CounterSum& sum = counter_sums_.front();
    if (sum.add_incoming)
      for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += sum.incoming[i];
    sum.add_incoming = false;
    if (post_counter_round(sum)) continue;
    --*sum.left;
    counter_sums_.pop_front();
  }
}

// Blocks, with the ring going on: another rank may need our part of a sum before it comes here.
void MpiRing::complete(std::vector<MPI_Request>& requests) {
  int done = 0;
  for (Waiter waiter;;) {
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    if (done) return;
    progress();
    waiter.pause();
  }
}

void MpiRing::check_root(int root) const {
  if (root < 0 || root >= size_) throw Error(cat("root rank ", root, " of ", size_, " ranks does not exist"));
}

void MpiRing::broadcast(std::span<std::byte> bytes, int root) {
  check_root(root);
  if (size_ == 1) return;
  std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
  for (std::size_t offset = 0; offset < bytes.size(); offset += max_count_) {
    const int count = static_cast<int>(std::min(max_count_, bytes.size() - offset));
    check_mpi(MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, comm_, request.data()), "MPI_Ibcast");
    complete(request);
  }
}

void MpiRing::gather(std::span<const float> mine, std::span<float> all, int root) {
  check_root(root);
  const auto ranks = static_cast<std::size_t>(size_);
  if (rank_ == root && all.size() != ranks * mine.size())
    throw Error(cat("gather: ", all.size(), " places for ", ranks, " x ", mine.size(), " values"));
  std::vector<MPI_Request> requests;
  for (std::size_t offset = 0; offset < mine.size(); offset += max_count_) {
    const std::size_t count = std::min(max_count_, mine.size() - offset);
    requests.clear();
    if (rank_ != root) {
      check_mpi(MPI_Isend(mine.data() + offset, static_cast<int>(count), MPI_FLOAT, root, kGatherTag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    } else {
      for (int r = 0; r < size_; ++r) {
        float* target = all.data() + static_cast<std::size_t>(r) * mine.size() + offset;
        if (r == root)
          std::copy_n(mine.data() + offset, count, target);
        else
          check_mpi(MPI_Irecv(target, static_cast<int>(count), MPI_FLOAT, r, kGatherTag, comm_,
                              &requests.emplace_back(MPI_REQUEST_NULL)),
                    "MPI_Irecv");
      }
    }
    complete(requests);
  }
}

void MpiRing::scatter(std::span<const float> all, std::span<float> mine, int root) {
  check_root(root);
  const auto ranks = static_cast<std::size_t>(size_);
  if (rank_ == root && all.size() != ranks * mine.size())
    throw Error(cat("scatter: ", all.size(), " values for ", ranks, " x ", mine.size(), " places"));
  std::vector<MPI_Request> requests;
  for (std::size_t offset = 0; offset < mine.size(); offset += max_count_) {
    const std::size_t count = std::min(max_count_, mine.size() - offset);
    requests.clear();
    if (rank_ != root) {
      check_mpi(MPI_Irecv(mine.data() + offset, static_cast<int>(count), MPI_FLOAT, root, kScatterTag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Irecv");
    } else {
      for (int r = 0; r < size_; ++r) {
        const float* source = all.data() + static_cast<std::size_t>(r) * mine.size() + offset;
        if (r == root)
          std::copy_n(source, count, mine.data() + offset);
        else
          check_mpi(MPI_Isend(source, static_cast<int>(count), MPI_FLOAT, r, kScatterTag, comm_,
                              &requests.emplace_back(MPI_REQUEST_NULL)),
                    "MPI_Isend");
      }
    }
    complete(requests);
  }
}

void MpiRing::barrier() {
  if (size_ == 1) return;
  std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
  check_mpi(MPI_Ibarrier(comm_, request.data()), "MPI_Ibarrier");
  complete(request);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(std::size_t chunk_bytes, std::size_t max_count) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiRing>(comm, chunk_bytes, max_count);
}

std::unique_ptr<Communicator> make_group_communicator(std::size_t chunk_bytes, int group) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, group < 0 ? MPI_UNDEFINED : group, 0, &comm), "MPI_Comm_split");
  if (comm == MPI_COMM_NULL) return nullptr;
  return std::make_unique<MpiRing>(comm, chunk_bytes, 0x7fffffff);
}

}  // namespace ringtrain
