#include "cluster/surviving_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "cluster/fault_tolerance.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/sent_bytes.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t largest_message = std::size_t{1} << 30;  // in bytes, because MPI's counts are ints
constexpr double drain_seconds = 10;                           // a revoked communicator ends its messages at once

struct Interrupted {};  // thrown if a rank has died, or if another rank has noticed a death

class SurvivingCommunicator : public Communicator {
 public:
  SurvivingCommunicator(const RankGroup& group, std::function<void(const std::vector<int>&)> may_go_on)
      : mpi_(FaultTolerance::get()), group_(group), may_go_on_(std::move(may_go_on)), comm_(duplicate(group)) {
    for (int rank = 0; rank < group.size(); ++rank) members_.push_back(rank);
    FaultTolerance::end_with_job(comm_);
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string describe() const override { return "MPI with fault tolerance, goes on without a server that dies"; }

  using Communicator::sum;
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    if (before) before(0);
    return std::make_unique<LaterSum<float>>(*this, values);
  }
  std::unique_ptr<Pending> start_sum(std::span<double> values) override {
    return std::make_unique<LaterSum<double>>(*this, values);
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    complete([&] { send_to_all(bytes, root); });
  }
  void gather(std::span<const float> mine, std::span<float> all, int root) override {
    complete([&] {
      if (rank() != root) return send(std::as_bytes(mine), place_of(root));
      std::ranges::fill(all, 0.0f);
      for (std::size_t place = 0; place < members_.size(); ++place) {
        const std::span<float> theirs =
            all.subspan(static_cast<std::size_t>(members_[place]) * mine.size(), mine.size());
        if (members_[place] == root)
          std::ranges::copy(mine, theirs.begin());
        else
          receive(std::as_writable_bytes(theirs), static_cast<int>(place));
      }
    });
  }
  void scatter(std::span<const float> all, std::span<float> mine, int root) override {
    complete([&] {
      if (rank() != root) return receive(std::as_writable_bytes(mine), place_of(root));
      for (std::size_t place = 0; place < members_.size(); ++place) {
        const std::span<const float> theirs =
            all.subspan(static_cast<std::size_t>(members_[place]) * mine.size(), mine.size());
        if (members_[place] == root)
          std::ranges::copy(theirs, mine.begin());
        else
          send(std::as_bytes(theirs), static_cast<int>(place));
      }
    });
  }
  void barrier() override {
    complete([] {});
  }

 private:
  template <class Value>
  class LaterSum : public Pending {
   public:
    LaterSum(SurvivingCommunicator& communicator, std::span<Value> values)
        : communicator_(communicator), values_(values) {}
    bool done() override { return ended_; }
    void finish() override {
      if (!ended_) communicator_.add(values_);
      ended_ = true;
    }

   private:
    SurvivingCommunicator& communicator_;
    std::span<Value> values_;
    bool ended_ = false;
  };

  template <class Value>
  void add(std::span<Value> values) {
    const std::vector<Value> mine(values.begin(), values.end());
    std::vector<Value> theirs(mine.size());
    complete([&] {
      if (rank() != members_[0]) {
        send(std::as_bytes(std::span(mine)), 0);
      } else {
        std::ranges::copy(mine, values.begin());
        for (std::size_t place = 1; place < members_.size(); ++place) {
          receive(std::as_writable_bytes(std::span(theirs)), static_cast<int>(place));
          for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
        }
      }
      send_to_all(std::as_writable_bytes(values), members_[0]);
    });
  }

  // `once` is the collective on the ranks of comm_. It may be repeated, and must then find its inputs unchanged.
  template <class Once>
  void complete(const Once& once) {
    while (!mpi_.agree(comm_, ends_whole(once))) leave_out_the_dead();
  }
  template <class Once>
  bool ends_whole(const Once& once) {
    try {
      once();
      return true;
    } catch (const Interrupted&) {
      mpi_.revoke(comm_);
      drain();
      return false;
    }
  }

  // A communicator with a dead rank is not freed, but left to MPI.
  void leave_out_the_dead() {
    comm_ = mpi_.shrink(comm_);
    FaultTolerance::end_with_job(comm_);
    MPI_Group living = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(comm_, &living), "MPI_Comm_group");
    const std::vector<int> left = places_in(group_.state().comm, living);
    MPI_Group_free(&living);
    if (left.size() == members_.size())
      throw Error("MPI could not finish a collective, but no rank has died", "go on with --resume");
    for (const int member : members_)
      if (std::ranges::find(left, member) == left.end()) group_.note_death(member);
    members_ = left;
    may_go_on_(group_.dead());
  }

  int place_of(int rank) const {
    const auto place = std::ranges::find(members_, rank);
    if (place == members_.end())
      throw RootDied(cat("rank ", rank, " has died, and the others need what it had"), "go on with --resume");
    return static_cast<int>(place - members_.begin());
  }

  // Broadcasts along a binomial tree. The rank k places after the root receives from the rank k' places after the root,
  // where k' is k without its lowest 1 bit.
  void send_to_all(std::span<std::byte> bytes, int root) {
    const int size = static_cast<int>(members_.size()), from = place_of(root);
    const int own = (place_of(rank()) - from + size) % size;
    int bit = 1;
    for (; bit < size && (own & bit) == 0; bit <<= 1) {
    }
    if (own != 0) receive(bytes, (own - bit + from) % size);
    for (bit >>= 1; bit > 0; bit >>= 1)
      if (own + bit < size) send(bytes, (own + bit + from) % size);
  }

  void send(std::span<const std::byte> bytes, int place) {
    sent_bytes().by_message += std::ssize(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      start(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, place, 0, comm_, new_request()));
    }
    wait_for_all();
  }
  void receive(std::span<std::byte> bytes, int place) {
    for (std::size_t at = 0; at < bytes.size(); at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      start(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, place, 0, comm_, new_request()));
    }
    wait_for_all();
  }
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  static void start(int code) {
    if (code != MPI_SUCCESS) throw Interrupted{};
  }
  void wait_for_all() {
    Waiter waiter;
    for (MPI_Request& request : requests_)
      for (int done = 0; !done; done ? void() : waiter.pause())
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) throw Interrupted{};
    requests_.clear();
  }
  // Waits for unfinished operations, because they still use the caller's memory.
  void drain() {
    const double begin = now_seconds();
    for (MPI_Request& request : requests_)
      for (int done = 0; !done && request != MPI_REQUEST_NULL;) {
        static_cast<void>(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (now_seconds() - begin > drain_seconds)
          throw Error("MPI does not give up messages to a rank that has died", "go on with --resume");
      }
    requests_.clear();
  }

  const FaultTolerance& mpi_;
  const RankGroup group_;
  const std::function<void(const std::vector<int>&)> may_go_on_;
  MPI_Comm comm_;             // ranks that were alive after the last collective; never freed
  std::vector<int> members_;  // numbers of these ranks in the group, by place in comm_
  std::vector<MPI_Request> requests_;
};

}  // namespace

std::unique_ptr<Communicator> make_surviving_communicator(const RankGroup& group,
                                                          std::function<void(const std::vector<int>& dead)> may_go_on) {
  if (!group.ends_job())
    throw Error("parallel.replicas: 2 is for a job that is one run, and this run is a trial of a study",
                "leave parallel.replicas out of the study's experiment");
  static_cast<void>(FaultTolerance::get());
  group.outlive_deaths();
  return std::make_unique<SurvivingCommunicator>(group, std::move(may_go_on));
}

}  // namespace ringtrain
