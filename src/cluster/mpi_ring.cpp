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
// Each element is summed once, on one rank, and then copied, so all ranks end with the same bits. A reduce-scatter or
// an all-gather alone is one half of the steps, with the pieces' numbers moved by one: rank r ends with piece r. Lanes
// of all collectives are numbered in the order of starting, the same on all ranks, and lane j travels in slot j mod
// kSlots. A slot works off its lanes one after the other and owns a tag; the slots run side by side. So a message finds
// its receiver by slot and order alone, whatever the order in which ranks advance slots or wait for collectives.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "cluster/communicator.h"
#include "cluster/mpi_counter_sums.h"
#include "cluster/mpi_root_sums.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/session.h"
#include "cluster/span_ranks.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t kSlots = 16;
constexpr std::size_t kCacheLine = 16;  // floats
constexpr int kCounterTag = kSlots, kGatherTag = kSlots + 1, kScatterTag = kSlots + 2, kSilentTag = kSlots + 3;

// After an error: for the ranks of the group to leave what they compute and see that it has failed.
constexpr double kQuietSeconds = 600;

void add(float* __restrict into, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

// Piece i: piece_length elements from i x stride on, as far as they lie before `length`.
struct Lane {
  float* values = nullptr;
  std::size_t length = 0, piece_length = 0, stride = 0;
  int first = 0, end = 0;  // steps
  int shift = 0;           // of the pieces' numbers
  PartsLeft left;
};

struct Slot {
  std::deque<Lane> lanes;  // front: under way
  std::vector<float> incoming;
  int step = -1;
  int open_requests = 0;
};

class MpiRing final : public Communicator {
 public:
  MpiRing(const RankGroup& group, std::size_t chunk_bytes, std::size_t max_count);
  ~MpiRing() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override;
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override;
  std::unique_ptr<Pending> start_sum(std::span<double> values) override;
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                const BeforeSum& before) override;
  std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) override;
  std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before) override;
  std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void gather(std::span<const float> mine, std::span<float> all, int root) override;
  void scatter(std::span<const float> all, std::span<float> mine, int root) override;
  void barrier() override;
  std::unique_ptr<GroupRanks> share_groups(int span) override { return make_span_ranks(group_, span); }
  void poll() override {
    if (!aborted_) group_.check();
  }
  void abort(const std::string& why) override;

  void progress();
  void check() const { group_.check(); }
  bool aborted() const { return aborted_; }

 private:
  std::unique_ptr<Pending> start_half(std::span<float> values, std::int64_t piece, int first, int end);
  void push(Lane lane);
  void exchange_with_root(std::span<float> mine, std::span<float> all, int root, bool to_root);
  MpiRootSums& root_sums();
  void progress_ring();
  void advance(std::size_t slot_index);
  void post(std::size_t slot_index);
  std::span<float> piece(const Lane& lane, int step) const;
  void complete(std::vector<MPI_Request>& requests);
  void check_root(int root) const;
  void check_not_aborted() const;
  void fall_silent();

  RankGroup group_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool aborted_ = false;
  int rank_ = 0, size_ = 1, left_ = 0, right_ = 0;
  std::size_t chunk_ = 0, max_count_ = 0;  // elements
  std::vector<Slot> slots_{kSlots};
  std::vector<MPI_Request> requests_ = std::vector<MPI_Request>(2 * kSlots, MPI_REQUEST_NULL);  // slot: receive, send
  std::vector<int> completed_ = std::vector<int>(2 * kSlots);
  std::size_t next_slot_ = 0;
  int busy_slots_ = 0;
  MpiCounterSums counter_sums_;
  std::unique_ptr<MpiRootSums> root_sums_;  // null: nobody has asked for one
};

class PendingSum final : public Pending {
 public:
  PendingSum(MpiRing& ring, PartsLeft left) : ring_(ring), left_(std::move(left)) {}
  // The ring still uses the buffer, so an abandoned sum is finished first; not after an error, when the other ranks may
  // never answer.
  ~PendingSum() override {
    if (*left_ == 0 || ring_.aborted()) return;
    if (std::uncaught_exceptions() > 0) {
      ring_.abort("an error ended this rank's run");
      return;
    }
    try {
      finish();
    } catch (const std::exception& e) {
      ring_.abort(e.what());
      if (!ring_.aborted()) std::abort();  // MPI failed while it holds memory that is about to be freed
    }
  }
  bool done() override {
    if (*left_ != 0) ring_.progress();
    return *left_ == 0;
  }
  void finish() override {
    for (Waiter waiter; !done(); waiter.pause()) ring_.check();
  }

 private:
  MpiRing& ring_;
  PartsLeft left_;
};

MpiRing::MpiRing(const RankGroup& group, std::size_t chunk_bytes, std::size_t max_count)
    : group_(group), comm_(duplicate(group)), counter_sums_(comm_, kCounterTag) {
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
  if (std::uncaught_exceptions() == 0 && !group_.failed()) MPI_Comm_free(&comm_);
}

std::string MpiRing::describe() const {
  if (size_ == 1) return "one rank, nothing to communicate";
  const std::size_t bytes = chunk_ * sizeof(float);
  return bytes % 1024 == 0 ? cat("MPI ring, chunks of ", bytes / 1024, " KiB")
                           : cat("MPI ring, chunks of ", bytes, " bytes");
}

std::unique_ptr<Pending> MpiRing::start_sum(std::span<float> values, const BeforeSum& before) {
  check_not_aborted();
  if (before) before(0);
  auto left = std::make_shared<std::size_t>(0);
  const auto ranks = static_cast<std::size_t>(size_);
  for (std::size_t offset = 0; size_ > 1 && offset < values.size();) {
    Lane lane{.values = values.data() + offset, .end = 2 * (size_ - 1), .left = left};
    lane.length = std::min(values.size() - offset, ranks * chunk_);
    lane.piece_length = (lane.length + ranks - 1) / ranks;
    if (chunk_ >= kCacheLine) lane.piece_length = (lane.piece_length + kCacheLine - 1) / kCacheLine * kCacheLine;
    lane.stride = lane.piece_length;
    offset += lane.length;
    push(std::move(lane));
  }
  return std::make_unique<PendingSum>(*this, std::move(left));
}

std::unique_ptr<Pending> MpiRing::start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                       const BeforeSum& before) {
  check_not_aborted();
  if (before) before(0);
  return start_half(values, piece, 0, size_ - 1);
}

std::unique_ptr<Pending> MpiRing::start_all_gather(std::span<float> values, std::int64_t piece) {
  check_not_aborted();
  return start_half(values, piece, size_ - 1, 2 * (size_ - 1));
}

// Each lane takes a chunk of every piece.
std::unique_ptr<Pending> MpiRing::start_half(std::span<float> values, std::int64_t piece, int first, int end) {
  check_pieces(values, piece);
  auto left = std::make_shared<std::size_t>(0);
  const auto stride = static_cast<std::size_t>(piece);
  for (std::size_t offset = 0; size_ > 1 && offset < std::min(stride, values.size()); offset += chunk_)
    push({.values = values.data() + offset,
          .length = values.size() - offset,
          .piece_length = std::min(chunk_, stride - offset),
          .stride = stride,
          .first = first,
          .end = end,
          .shift = 1,
          .left = left});
  return std::make_unique<PendingSum>(*this, std::move(left));
}

void MpiRing::push(Lane lane) {
  ++*lane.left;
  Slot& slot = slots_[next_slot_];
  slot.lanes.push_back(std::move(lane));
  if (slot.lanes.size() == 1) {
    ++busy_slots_;
    advance(next_slot_);
  }
  next_slot_ = (next_slot_ + 1) % kSlots;
}

MpiRootSums& MpiRing::root_sums() {
  check_not_aborted();
  if (!root_sums_) root_sums_ = std::make_unique<MpiRootSums>(group_, chunk_);
  return *root_sums_;
}

std::unique_ptr<Pending> MpiRing::start_root_sum(std::span<float> values, int root, const BeforeSum& before) {
  check_root(root);
  if (before) before(0);
  auto left = std::make_shared<std::size_t>(0);
  if (size_ > 1) root_sums().start_sum(values, root, left);
  return std::make_unique<PendingSum>(*this, std::move(left));
}

std::unique_ptr<Pending> MpiRing::start_broadcast(std::span<float> values, int root) {
  check_root(root);
  auto left = std::make_shared<std::size_t>(0);
  if (size_ > 1) root_sums().start_broadcast(values, root, left);
  return std::make_unique<PendingSum>(*this, std::move(left));
}

// The piece that this rank sends in `step`; it receives the one that it sends in step + 1. The last ones may be shorter
// or empty: then both sides leave the message out.
std::span<float> MpiRing::piece(const Lane& lane, int step) const {
  const auto index = static_cast<std::size_t>(((rank_ - step - lane.shift) % size_ + size_) % size_);
  const std::size_t begin = std::min(lane.length, index * lane.stride);
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
    if (slot.step < 0) {
      slot.step = slot.lanes.front().first;
    } else {
      if (slot.step < size_ - 1) {
        const std::span<float> received = piece(slot.lanes.front(), slot.step + 1);
        add(received.data(), slot.incoming.data(), received.size());
      }
      ++slot.step;
    }
    if (slot.step == slot.lanes.front().end) {
      --*slot.lanes.front().left;
      slot.lanes.pop_front();
      if (slot.lanes.empty()) {
        slot.step = -1;
        --busy_slots_;
        return;
      }
      slot.step = slot.lanes.front().first;
    }
    post(slot_index);
  } while (slot.open_requests == 0);
}

void MpiRing::progress() {
  if (busy_slots_ > 0) progress_ring();
  counter_sums_.progress();
  if (root_sums_) root_sums_->progress();
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
  check_not_aborted();
  auto left = std::make_shared<std::size_t>(0);
  if (size_ > 1)
    for (std::size_t offset = 0; offset < values.size(); offset += max_count_)
      counter_sums_.start(values.subspan(offset, std::min(max_count_, values.size() - offset)), left);
  return std::make_unique<PendingSum>(*this, std::move(left));
}

// Blocks, with the ring going on: another rank may need our part of a sum before it comes here. Only after a barrier():
// then no rank is waited for that may fail before it comes.
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
  barrier();
  std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
  for (std::size_t offset = 0; offset < bytes.size(); offset += max_count_) {
    const int count = static_cast<int>(std::min(max_count_, bytes.size() - offset));
    check_mpi(MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, comm_, request.data()), "MPI_Ibcast");
    complete(request);
  }
}

void MpiRing::gather(std::span<const float> mine, std::span<float> all, int root) {
  if (rank_ == root && all.size() != static_cast<std::size_t>(size_) * mine.size())
    throw Error(cat("gather: ", all.size(), " places for ", size_, " x ", mine.size(), " values"));
  exchange_with_root({const_cast<float*>(mine.data()), mine.size()}, all, root, true);
}

void MpiRing::scatter(std::span<const float> all, std::span<float> mine, int root) {
  if (rank_ == root && all.size() != static_cast<std::size_t>(size_) * mine.size())
    throw Error(cat("scatter: ", all.size(), " values for ", size_, " x ", mine.size(), " places"));
  exchange_with_root(mine, {const_cast<float*>(all.data()), all.size()}, root, false);
}

// `to_root`: what is read is `mine`; otherwise `all`. The other one is written.
void MpiRing::exchange_with_root(std::span<float> mine, std::span<float> all, int root, bool to_root) {
  check_root(root);
  barrier();
  std::vector<MPI_Request> requests;
  const auto post_message = [&](float* values, std::size_t count, int other, bool sends) {
    const int n = static_cast<int>(count), tag = to_root ? kGatherTag : kScatterTag;
    MPI_Request* request = &requests.emplace_back(MPI_REQUEST_NULL);
    if (sends)
      check_mpi(MPI_Isend(values, n, MPI_FLOAT, other, tag, comm_, request), "MPI_Isend");
    else
      check_mpi(MPI_Irecv(values, n, MPI_FLOAT, other, tag, comm_, request), "MPI_Irecv");
  };
  for (std::size_t offset = 0; offset < mine.size(); offset += max_count_) {
    const std::size_t count = std::min(max_count_, mine.size() - offset);
    requests.clear();
    if (rank_ != root) post_message(mine.data() + offset, count, root, to_root);
    for (int r = 0; rank_ == root && r < size_; ++r) {
      float* of_rank = all.data() + static_cast<std::size_t>(r) * mine.size() + offset;
      if (r != root)
        post_message(of_rank, count, r, !to_root);
      else if (to_root)
        std::copy_n(mine.data() + offset, count, of_rank);
      else
        std::copy_n(of_rank, count, mine.data() + offset);
    }
    complete(requests);
  }
}

void MpiRing::barrier() {
  check_not_aborted();
  if (size_ == 1) return;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  for (Waiter waiter;; waiter.pause()) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
    progress();
    check();
  }
}

void MpiRing::check_not_aborted() const {
  if (aborted_) throw Error("a collective was started after its communicator had been ended by an error");
}

void MpiRing::abort(const std::string& why) {
  if (group_.ends_job() || std::exchange(aborted_, true)) return;
  try {
    group_.fail(why);
    fall_silent();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ringtrain: error (%s): %s\n  its group of %d ranks cannot be ended: %s; leaving the job\n",
                 rank_label().c_str(), why.c_str(), size_, e.what());
    leave_job(1);
  }
}

// Other ranks may still be writing to this rank's memory or reading from it. A receive is cancelled, or its message is
// on its way and arrives. When all ranks have no receive left, nobody will ask for what this rank has sent.
void MpiRing::fall_silent() {
  std::vector<MPI_Request> receives, sends;
  counter_sums_.take_requests(receives, sends);
  for (std::size_t i = 0; i < requests_.size(); ++i) (i % 2 == 0 ? receives : sends).push_back(requests_[i]);
  const double begin = now_seconds();
  const auto all_done = [&](std::vector<MPI_Request>& requests) {
    for (Waiter waiter;; waiter.pause()) {
      int done = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
                "MPI_Testall");
      if (done) return;
      group_.look_out();
      if (now_seconds() - begin > kQuietSeconds)
        throw Error(cat("other ranks of the group did not answer within ", kQuietSeconds, " s"));
    }
  };
  if (root_sums_) root_sums_->take_requests(receives, sends);
  for (MPI_Request& request : receives)
    if (request != MPI_REQUEST_NULL) check_mpi(MPI_Cancel(&request), "MPI_Cancel");
  all_done(receives);
  std::vector<MPI_Request> words;  // no MPI_Ibarrier: it would answer a barrier() in which another rank still waits
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, r, kSilentTag, comm_, &words.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, r, kSilentTag, comm_, &words.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
  }
  all_done(words);
  for (MPI_Request& request : sends)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  std::ranges::fill(requests_, MPI_REQUEST_NULL);
  slots_.assign(kSlots, {});
  busy_slots_ = 0;
  counter_sums_.forget();
  if (root_sums_) root_sums_->forget();
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const RankGroup& group, std::size_t chunk_bytes,
                                                    std::size_t max_count) {
  return std::make_unique<MpiRing>(group, chunk_bytes, max_count);
}

}  // namespace ringtrain
