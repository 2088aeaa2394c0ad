// Collectives on host memory. A sum follows a schedule, which is chosen by the number of bytes (sum_algorithms.h).
// MpiLanes (mpi_sums.h) carries it out by MPI messages or through the node exchange.
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/norm_team.h"
#include "base/error.h"
#include "cluster/communicator.h"
#include "cluster/mpi_calls.h"
#include "cluster/mpi_sums.h"
#include "cluster/node_memory.h"
#include "cluster/sum_algorithms.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t kCacheLine = 16;  // in floats
constexpr int kCounterTag = MpiLanes::slots, kGatherTag = kCounterTag + 1, kScatterTag = kCounterTag + 2,
              kRootSumTag = kCounterTag + 3, kRootBroadcastTag = kCounterTag + 4;

// The most chunks of a lane that is summed by halving or by the hierarchical sum. With fewer ranks, a lane has one
// chunk per rank. The chunks of halving are enough to make its last halves worth a message, and few enough to let
// several lanes of a bucket travel at the same time.
constexpr std::size_t kHalvedChunks = 16, kHierarchicalChunks = 64;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const RankGroup& group, std::size_t chunk_bytes, std::size_t max_count, SumChoice choice)
      : group_(group),
        comm_(duplicate(group)),
        rank_(group.rank()),
        size_(group.size()),
        choice_(std::move(choice)),
        layout_(choice_.node_of_rank.empty() ? group.hosts() : choice_.node_of_rank),
        lanes_(comm_),
        counter_sums_(group, comm_, kCounterTag) {
    check_sum_choice(choice_, layout_.shape());
    max_count_ = std::clamp(max_count, std::size_t{1}, std::size_t{0x7fffffff});
    chunk_ = std::clamp(chunk_bytes / sizeof(float), std::size_t{1}, max_count_);
    if (chunk_ > kCacheLine) chunk_ -= chunk_ % kCacheLine;
    align_ = chunk_ >= kCacheLine ? kCacheLine : 1;
    if (choice_.algorithm == "mpi") library_sums_ = std::make_unique<MpiLibrarySums>(group);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override {
    if (size_ == 1) return "one rank, nothing to communicate";
    const std::size_t bytes = chunk_ * sizeof(float);
    const std::string chunks = bytes % 1024 == 0 ? cat(bytes / 1024, " KiB") : cat(bytes, " bytes");
    if (choice_.algorithm == "mpi") return "MPI, sums by the library's own all-reduce";
    if (choice_.algorithm != "auto") return cat("MPI, ", choice_.algorithm, ", chunks of ", chunks);
    const std::string small = sum_algorithm_name(algorithm_for(1)),
                      large = sum_algorithm_name(algorithm_for(100 << 20));
    return cat("MPI, ", small == large ? small : cat(small, " or, for large sums, ", large), " (auto), chunks of ",
               chunks);
  }
  std::map<std::string, std::string> record() const override { return {{"algorithm", choice_.algorithm}}; }
  void* allocate(std::int64_t bytes) override {
    if (!node_exchange_) {
      node_exchange_ = std::make_unique<NodeExchange>(group_, layout_.node_of(rank_), MpiLanes::slots);
      lanes_.use(*node_exchange_);
    }
    return node_exchange_->allocate(static_cast<std::size_t>(bytes));
  }
  void release(void* memory) override { node_exchange_->release(memory); }
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    if (before) before(0);
    return sum_of_parts([&](const PartsLeft& left) {
      if (values.empty()) return;
      const SumAlgorithm algorithm = algorithm_for(values.size_bytes());
      const std::size_t most = lane_elements(algorithm);
      for (std::size_t offset = 0; offset < values.size(); offset += most) {
        const std::size_t length = std::min(values.size() - offset, most);
        if (library_sums_)
          library_sums_->start(values.subspan(offset, length), left);
        else
          lanes_.start(values.data() + offset, schedule(algorithm, length), left);
      }
    });
  }
  std::unique_ptr<Pending> start_sum(std::span<double> values) override {
    return sum_of_parts([&](const PartsLeft& left) {
      for (std::size_t offset = 0; offset < values.size(); offset += max_count_)
        counter_sums_.start(values.subspan(offset, std::min(max_count_, values.size() - offset)), left);
    });
  }
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                const BeforeSum& before) override {
    if (before) before(0);
    return start_half(ring_reduce_scatter, values, piece);
  }
  std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) override {
    return start_half(ring_all_gather, values, piece);
  }
  std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before) override {
    check_root(root);
    if (before) before(0);
    return sum_of_parts([&](const PartsLeft& left) { root_sums().start_sum(values, root, left); });
  }
  std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) override {
    check_root(root);
    return sum_of_parts([&](const PartsLeft& left) { root_sums().start_broadcast(values, root, left); });
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_root(root);
    if (size_ == 1) return;
    barrier();
    if (rank_ == root) sent_bytes().by_message += (size_ - 1) * std::ssize(bytes);
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    for (std::size_t offset = 0; offset < bytes.size(); offset += max_count_) {
      const int count = static_cast<int>(std::min(max_count_, bytes.size() - offset));
      check_mpi(MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, comm_, request.data()), "MPI_Ibcast");
      complete(request);
    }
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override {
    if (rank_ == root && all.size() != static_cast<std::size_t>(size_) * mine.size())
      throw Error(cat("gather: room for ", all.size(), " bytes, expected ", size_, " x ", mine.size()));
    exchange_with_root({const_cast<std::byte*>(mine.data()), mine.size()}, all, root, true);
  }
  void scatter(std::span<const std::byte> all, std::span<std::byte> mine, int root) override {
    if (rank_ == root && all.size() != static_cast<std::size_t>(size_) * mine.size())
      throw Error(cat("scatter: ", all.size(), " bytes, expected ", size_, " x ", mine.size()));
    exchange_with_root(mine, {const_cast<std::byte*>(all.data()), all.size()}, root, false);
  }
  void barrier() override {
    if (size_ == 1) return;
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    check_mpi(MPI_Ibarrier(comm_, request.data()), "MPI_Ibarrier");
    complete(request);
  }
  std::unique_ptr<NormTeam> make_norm_team(int span) override { return make_mpi_norm_team(group_, span); }

  void progress() {
    lanes_.progress();
    counter_sums_.progress();
    if (root_sums_) root_sums_->progress();
    if (library_sums_) library_sums_->progress();
  }

 private:
  class PendingSum final : public Pending {
   public:
    PendingSum(MpiCommunicator& communicator, PartsLeft left) : communicator_(communicator), left_(std::move(left)) {}
    // MPI still uses the buffer, so an abandoned sum is finished first. After an error it is not finished, because the
    // other ranks may never answer, and the job ends.
    ~PendingSum() override {
      if (*left_ > 0 && std::uncaught_exceptions() == 0) finish();
    }
    bool done() override {
      if (*left_ != 0) communicator_.progress();
      return *left_ == 0;
    }

   private:
    MpiCommunicator& communicator_;
    PartsLeft left_;
  };

  // Returns a sum whose parts `start` starts. With one rank there is nothing to start.
  template <class Start>
  std::unique_ptr<Pending> sum_of_parts(const Start& start) {
    auto left = std::make_shared<std::size_t>(0);
    if (size_ > 1) start(left);
    return std::make_unique<PendingSum>(*this, std::move(left));
  }
  SumAlgorithm algorithm_for(std::size_t bytes) const {
    return chosen_sum(choice_, layout_.shape(), static_cast<double>(bytes));
  }
  // Returns the number of elements of a lane, so that all of its messages are within MPI's limit.
  std::size_t lane_elements(SumAlgorithm algorithm) const {
    const auto ranks = static_cast<std::size_t>(size_);
    if (algorithm == SumAlgorithm::ring) return ranks * chunk_;
    if (algorithm == SumAlgorithm::library) return max_count_;
    const std::size_t most = algorithm == SumAlgorithm::halving ? kHalvedChunks : kHierarchicalChunks;
    return std::min(max_count_, std::min(ranks, most) * chunk_);
  }
  SumSchedule schedule(SumAlgorithm algorithm, std::size_t length) const {
    if (algorithm == SumAlgorithm::ring) return ring_sum(rank_, size_, length, align_);
    SumSchedule schedule = algorithm == SumAlgorithm::hierarchical
                               ? hierarchical_sum(rank_, layout_.nodes(), length, align_)
                               : halving_sum(rank_, size_, length, align_);
    if (layout_.nodes().size() > 1) mark_steps_in_node(schedule, layout_.node_of(rank_));
    return schedule;
  }
  using RingHalf = SumSchedule(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride);
  // Each lane sums one chunk of every piece.
  std::unique_ptr<Pending> start_half(RingHalf& half, std::span<float> values, std::int64_t piece) {
    check_pieces(values, piece);
    const auto stride = static_cast<std::size_t>(piece);
    return sum_of_parts([&](const PartsLeft& left) {
      for (std::size_t offset = 0; offset < std::min(stride, values.size()); offset += chunk_)
        lanes_.start(values.data() + offset,
                     half(rank_, size_, values.size() - offset, std::min(chunk_, stride - offset), stride), left);
    });
  }
  // If `to_root` is true, `mine` is read and `all` is written. Otherwise `all` is read and `mine` is written.
  void exchange_with_root(std::span<std::byte> mine, std::span<std::byte> all, int root, bool to_root) {
    check_root(root);
    barrier();
    std::vector<MPI_Request> requests;
    const auto post_message = [&](std::byte* bytes, std::size_t count, int other, bool sends) {
      const int tag = to_root ? kGatherTag : kScatterTag;
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      if (sends)
        post_send<std::byte>(comm_, {bytes, count}, other, tag, request);
      else
        post_receive<std::byte>(comm_, {bytes, count}, other, tag, request);
    };
    for (std::size_t offset = 0; offset < mine.size(); offset += max_count_) {
      const std::size_t count = std::min(max_count_, mine.size() - offset);
      requests.clear();
      if (rank_ != root) post_message(mine.data() + offset, count, root, to_root);
      for (int r = 0; rank_ == root && r < size_; ++r) {
        std::byte* of_rank = all.data() + static_cast<std::size_t>(r) * mine.size() + offset;
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
  MpiRootSums& root_sums() {
    if (!root_sums_) root_sums_ = std::make_unique<MpiRootSums>(group_, comm_, kRootSumTag, kRootBroadcastTag, chunk_);
    return *root_sums_;
  }
  // Blocks, but lets the sums progress, because another rank may need our part of a sum before it comes here. Values
  // are sent only after a barrier(): then no rank is still on its way, so none can fail before it comes.
  void complete(std::vector<MPI_Request>& requests) {
    for (Waiter waiter; !all_done(requests); waiter.pause()) progress();
  }
  void check_root(int root) const {
    if (root < 0 || root >= size_) throw Error(cat("root rank ", root, " of ", size_, " ranks does not exist"));
  }

  RankGroup group_;
  OwnComm comm_;
  int rank_, size_;
  std::size_t chunk_ = 0, max_count_ = 0, align_ = 1;  // in elements
  SumChoice choice_;
  RankLayout layout_;
  std::unique_ptr<NodeExchange> node_exchange_;  // null: allocate() was not called
  MpiLanes lanes_;
  MpiCounterSums counter_sums_;
  std::unique_ptr<MpiRootSums> root_sums_;        // null: there was no such sum or broadcast
  std::unique_ptr<MpiLibrarySums> library_sums_;  // null: this program's own algorithms are used
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const RankGroup& group, std::size_t chunk_bytes,
                                                    std::size_t max_count, const SumChoice& choice) {
  return std::make_unique<MpiCommunicator>(group, chunk_bytes, max_count, choice);
}

namespace {

// A team of neighbouring ranks that share the virtual workers of batch norm.
class MpiNormTeam final : public NormTeam {
 public:
  MpiNormTeam(const RankGroup& group, int span)
      : group_(group), comm_(duplicate(group)), first_(group.rank() / span * span), size_(span) {}
  // After an error, a late message may still arrive. The buffer is then not freed, because MPI may write to it.
  ~MpiNormTeam() override {
    if (!open_) return;
    static_cast<void>(buffer_.release());
    comm_.abandon();
  }

  int rank() const override { return group_.rank() - first_; }
  int size() const override { return size_; }

  void gather(std::span<double> parts, const std::function<void()>& poll) override {
    const auto length = parts.size() / static_cast<std::size_t>(size_);
    if (buffer_->size() < parts.size()) buffer_->resize(parts.size());
    const auto own = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank()) * length);
    std::copy_n(parts.begin() + own, length, buffer_->begin() + own);
    SumSchedule schedule = doubling_gather(rank(), size_, length);
    for (SumStep& step : schedule) step.to += first_, step.from += first_;
    open_ = true;
    steps_.start({buffer_->data(), parts.size()}, std::move(schedule));
    for (Waiter waiter; !steps_.progress(); waiter.pause())
      if (poll) poll();
    open_ = false;
    std::copy_n(buffer_->begin(), parts.size(), parts.begin());
  }

 private:
  RankGroup group_;
  OwnComm comm_;
  MpiSteps steps_{comm_, 0};
  int first_, size_;
  bool open_ = false;  // MPI is using the buffer
  std::unique_ptr<std::vector<double>> buffer_ = std::make_unique<std::vector<double>>();
};

}  // namespace

void check_norm_teams(const std::vector<std::string>& hosts, int span) {
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const std::size_t first = r - r % static_cast<std::size_t>(span);
    if (hosts[r] == hosts[first]) continue;
    throw Error(cat("ranks ", first, " and ", r, " share a virtual worker of batch norm (batch.worker), but are on ",
                    hosts[first], " and ", hosts[r], ", expected one node for each ", span, " neighbouring ranks"),
                cat("Start a multiple of ", span,
                    " ranks on every node, neighbouring ranks on the same one (srun "
                    "--distribution=block), or a number of ranks that divides the workers."));
  }
}

std::unique_ptr<NormTeam> make_mpi_norm_team(const RankGroup& group, int span) {
  if (span < 1 || (span & (span - 1)) != 0 || group.size() % span != 0)
    throw Error(cat(span, " ranks cannot share a worker among ", group.size(),
                    " ranks, expected a power of two that divides them"));
  check_norm_teams(group.hosts(), span);
  return std::make_unique<MpiNormTeam>(group, span);
}

}  // namespace ringtrain
