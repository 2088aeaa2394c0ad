#include "cluster/surviving_communicator.h"

#include <algorithm>
#include <utility>

#include "cluster/fault_tolerance.h"

namespace ringtrain {
namespace {

constexpr int tag = 0;

class SurvivingCommunicator : public Communicator {
 public:
  SurvivingCommunicator(std::unique_ptr<Mailbox> mailbox, MayGoOn may_go_on)
      : mailbox_(std::move(mailbox)), may_go_on_(std::move(may_go_on)) {}

  int rank() const override { return mailbox_->rank(); }
  int size() const override { return mailbox_->size(); }
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
    if (rank() == root && root != 0) mailbox_->send(0, tag, bytes);
    if (rank() != 0) return hear(root, rank() == root ? std::span<std::byte>() : bytes);
    const bool is_here = root == 0 || mailbox_->receive(root, tag, bytes);
    tell(root, is_here, [&](int other) { return other == root ? std::span<const std::byte>() : bytes; });
  }
  void gather(std::span<const float> mine, std::span<float> all, int root) override {
    check_root(root);
    if (rank() != 0) {
      mailbox_->send(0, tag, std::as_bytes(mine));
      return hear(0, {});
    }
    std::ranges::copy(mine, all.begin());
    for (int other = 1; other < size(); ++other) {
      const std::span<float> theirs = all.subspan(static_cast<std::size_t>(other) * mine.size(), mine.size());
      if (!mailbox_->receive(other, tag, std::as_writable_bytes(theirs))) std::ranges::fill(theirs, 0.0f);
    }
    tell_nothing();
  }
  void scatter(std::span<const float> all, std::span<float> mine, int root) override {
    check_root(root);
    if (rank() != 0) return hear(0, std::as_writable_bytes(mine));
    std::ranges::copy(all.first(mine.size()), mine.begin());
    tell(0, true, [&](int other) {
      return std::as_bytes(all.subspan(static_cast<std::size_t>(other) * mine.size(), mine.size()));
    });
  }
  void barrier() override {
    std::byte arrived{};
    if (rank() != 0) {
      mailbox_->send(0, tag, std::span(&arrived, 1));
      return hear(0, {});
    }
    for (int other = 1; other < size(); ++other)
      static_cast<void>(mailbox_->receive(other, tag, std::span(&arrived, 1)));
    tell_nothing();
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
    const std::span<std::byte> bytes = std::as_writable_bytes(values);
    if (rank() != 0) {
      mailbox_->send(0, tag, bytes);
      return hear(0, bytes);
    }
    std::vector<Value> theirs(values.size());
    for (int other = 1; other < size(); ++other)
      if (mailbox_->receive(other, tag, std::as_writable_bytes(std::span(theirs))))
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
    tell(0, true, [&](int) { return bytes; });
  }

  // Rank 0 ends a collective. It sends news to each living rank, and the bytes of result(rank) after it. The news has a
  // byte that says whether the result comes, and a byte for each rank that says whether the rank is dead.
  template <class Result>
  void tell(int root, bool is_here, const Result& result) {
    std::vector<std::byte> news(static_cast<std::size_t>(size()) + 1, std::byte{0});
    news[0] = std::byte{is_here};
    for (const int dead : mailbox_->dead()) news[static_cast<std::size_t>(dead) + 1] = std::byte{1};
    for (int other = 1; other < size(); ++other) {
      mailbox_->send(other, tag, news);
      if (is_here) mailbox_->send(other, tag, result(other));
    }
    end(root, news);
  }
  void tell_nothing() {
    tell(0, true, [](int) { return std::span<const std::byte>(); });
  }
  // Every other rank ends a collective.
  void hear(int root, std::span<std::byte> result) {
    std::vector<std::byte> news(static_cast<std::size_t>(size()) + 1);
    if (!mailbox_->receive(0, tag, news) || (news[0] != std::byte{0} && !mailbox_->receive(0, tag, result))) {
      may_go_on_(mailbox_->dead());
      throw Error("rank 0 has died, and all collectives need it", "go on with --resume");
    }
    end(root, news);
  }
  // All living ranks call may_go_on_ with the same ranks, and throw the same errors.
  void end(int root, const std::vector<std::byte>& news) {
    std::vector<int> dead;
    for (int other = 0; other < size(); ++other)
      if (news[static_cast<std::size_t>(other) + 1] != std::byte{0}) dead.push_back(other);
    for (const int other : dead) mailbox_->note_death(other);
    may_go_on_(dead);
    if (news[0] == std::byte{0})
      throw RootDied(cat("rank ", root, " has died, and the others need what it had"), "go on with --resume");
  }

  static void check_root(int root) {
    if (root != 0) throw Error(cat("a job that outlives deaths gathers and scatters on rank 0, not on rank ", root));
  }

  const std::unique_ptr<Mailbox> mailbox_;
  const MayGoOn may_go_on_;
};

}  // namespace

std::unique_ptr<Communicator> make_surviving_communicator(const RankGroup& group, MayGoOn may_go_on) {
  if (!group.ends_job())
    throw Error("parallel.replicas: 2 is for a job that is one run, and this run is a trial of a study",
                "leave parallel.replicas out of the study's experiment");
  static_cast<void>(FaultTolerance::get());
  group.outlive_deaths();
  return make_surviving_communicator(make_mailbox(group), std::move(may_go_on));
}

std::unique_ptr<Communicator> make_surviving_communicator(std::unique_ptr<Mailbox> mailbox, MayGoOn may_go_on) {
  return std::make_unique<SurvivingCommunicator>(std::move(mailbox), std::move(may_go_on));
}

}  // namespace ringtrain
