// Sends all parts to all ranks by recursive doubling. Before round k (distance d = 2^k) rank r has the d parts of the
// ranks that differ from it only in the lowest k bits. It exchanges these parts with those of rank r ^ d:
//
//   rank 0   0 . . .  -> 0 1 . .  -> 0 1 2 3
//   rank 1   . 1 . .  -> 0 1 . .  -> 0 1 2 3
//   rank 2   . . 2 .  -> . . 2 3  -> 0 1 2 3
//   rank 3   . . . 3  -> . . 2 3  -> 0 1 2 3
#include "cluster/span_ranks.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/sent_bytes.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

class SpanRanks final : public GroupRanks {
 public:
  SpanRanks(const RankGroup& group, int span)
      : group_(group), comm_(duplicate(group)), first_(group.rank() / span * span), size_(span) {
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  // After an error, a late message may still arrive. The buffer is then not freed, because MPI may write to it.
  ~SpanRanks() override {
    if (open_) static_cast<void>(buffer_.release());
    if (!open_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  SpanRanks(const SpanRanks&) = delete;
  SpanRanks& operator=(const SpanRanks&) = delete;

  int rank() const override { return group_.rank() - first_; }
  int size() const override { return size_; }

  void gather(std::span<double> parts, const std::function<void()>& poll) override {
    const auto length = parts.size() / static_cast<std::size_t>(size_);
    if (buffer_->size() < parts.size()) buffer_->resize(parts.size());
    const auto at = [&](int member) { return static_cast<std::ptrdiff_t>(static_cast<std::size_t>(member) * length); };
    std::copy_n(parts.begin() + at(rank()), length, buffer_->begin() + at(rank()));
    for (int distance = 1; distance < size_; distance *= 2) {
      const int own = rank() & ~(distance - 1), other = own ^ distance;
      exchange(buffer_->data() + at(own), buffer_->data() + at(other), static_cast<std::size_t>(distance) * length,
               first_ + (rank() ^ distance), poll);
    }
    std::copy_n(buffer_->begin(), parts.size(), parts.begin());
  }

 private:
  void exchange(const double* own, double* other, std::size_t count, int partner, const std::function<void()>& poll) {
    if (count > 0x7fffffff) throw Error(cat(count, " numbers of batch norm are more than a message takes"));
    const int values = static_cast<int>(count);
    MPI_Request requests[2];
    check_mpi(MPI_Irecv(other, values, MPI_DOUBLE, partner, 0, comm_, &requests[0]), "MPI_Irecv");
    open_ = true;
    check_mpi(MPI_Isend(own, values, MPI_DOUBLE, partner, 0, comm_, &requests[1]), "MPI_Isend");
    sent_bytes().by_message += values * static_cast<std::int64_t>(sizeof(double));
    for (Waiter waiter;; waiter.pause()) {
      int done = 0;
      check_mpi(MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (done) break;
      if (poll) poll();
    }
    open_ = false;
  }

  RankGroup group_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int first_, size_;
  bool open_ = false;  // MPI is using the buffer
  std::unique_ptr<std::vector<double>> buffer_ = std::make_unique<std::vector<double>>();
};

}  // namespace

void check_spans(const std::vector<std::string>& hosts, int span) {
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

std::unique_ptr<GroupRanks> make_span_ranks(const RankGroup& group, int span) {
  if (span < 1 || (span & (span - 1)) != 0 || group.size() % span != 0)
    throw Error(cat(span, " ranks cannot share a worker among ", group.size(),
                    " ranks, expected a power of two that divides them"));
  check_spans(group.hosts(), span);
  return std::make_unique<SpanRanks>(group, span);
}

}  // namespace ringtrain
