#include "cluster/mpi_norm_team.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/error.h"
#include "cluster/mpi_sums.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

class MpiNormTeam final : public NormTeam {
 public:
  MpiNormTeam(const RankGroup& group, int span)
      : group_(group), comm_(duplicate(group)), first_(group.rank() / span * span), size_(span) {
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  // After an error, a late message may still arrive. The buffer is then not freed, because MPI may write to it.
  ~MpiNormTeam() override {
    if (open_) static_cast<void>(buffer_.release());
    if (!open_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  MpiNormTeam(const MpiNormTeam&) = delete;
  MpiNormTeam& operator=(const MpiNormTeam&) = delete;

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
  MPI_Comm comm_ = MPI_COMM_NULL;
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
