#include "cluster/rank_group.h"

#include <exception>
#include <numeric>

#include "base/clock.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/session.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr int kFailureTag = 1;
constexpr unsigned kLookEvery = 64;
constexpr double kLookOutSeconds = 1;
// MPI libraries send a message of this length at once, even if the receiver is not there yet.
constexpr std::size_t kLongestFailure = 512;

std::vector<std::string> gather_texts(const std::string& mine, MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  const auto ranks = static_cast<std::size_t>(size);
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(ranks), offsets(ranks);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm), "MPI_Allgather");
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
  check_mpi(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, comm),
            "MPI_Allgatherv");
  std::vector<std::string> texts(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    texts[r] = all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r]));
  return texts;
}

std::string processor_name() {
  char name[MPI_MAX_PROCESSOR_NAME + 1] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return {name, static_cast<std::size_t>(length)};
}

MPI_Comm with_errors_returned(MPI_Comm comm) {
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

MPI_Comm duplicate_of(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return copy;
}

}  // namespace

RankGroup::State::State(MPI_Comm taken, bool whole_job)
    : comm(with_errors_returned(taken)), node(comm), ends_job(whole_job), host(processor_name()) {
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  hosts = gather_texts(host, comm);
  MPI_Comm_rank(node.get(), &node_rank);
  MPI_Comm_size(node.get(), &node_size);
}

// A failed group keeps its communicator. MPI could give its number to a new communicator, which would then receive late
// messages of this one.
RankGroup::State::~State() {
  int all_told = 1, finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || failure || std::uncaught_exceptions() > 0) node.abandon();
  if (finalized) return;
  if (failure) {
    MPI_Testall(static_cast<int>(telling.size()), telling.data(), &all_told, MPI_STATUSES_IGNORE);
    if (!all_told) static_cast<void>(failure.release());  // MPI still reads the text
  } else if (std::uncaught_exceptions() == 0) {
    MPI_Comm_free(&comm);
  }
}

RankGroup RankGroup::of_job() {
  return RankGroup(std::make_shared<State>(duplicate_of(MPI_COMM_WORLD), true));
}

int RankGroup::rank() const {
  return state_->rank;
}
int RankGroup::size() const {
  return state_->size;
}
int RankGroup::node_rank() const {
  return state_->node_rank;
}
int RankGroup::node_size() const {
  return state_->node_size;
}
const std::string& RankGroup::host() const {
  return state_->host;
}
const std::vector<std::string>& RankGroup::hosts() const {
  return state_->hosts;
}
bool RankGroup::ends_job() const {
  return state_->ends_job;
}
bool RankGroup::failed() const {
  return state_->failure != nullptr;
}

std::optional<RankGroup> RankGroup::split(int colour) const {
  return split(colour, false);
}

std::optional<RankGroup> RankGroup::part(int colour) const {
  return split(colour, state_->ends_job);
}

std::optional<RankGroup> RankGroup::split(int colour, bool ends_job) const {
  meet();
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(state_->comm, colour < 0 ? MPI_UNDEFINED : colour, 0, &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return std::nullopt;
  return RankGroup(std::make_shared<State>(part, ends_job));
}

// MPI's own blocking calls do not notice that a rank has failed. This class makes them only after meet(). All ranks
// then begin the call at nearly the same time, and no rank waits long in it.
void RankGroup::meet() const {
  Waiter waiter;
  meet([&] { waiter.pause(); });
}

void RankGroup::meet(const std::function<void()>& while_waiting) const {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(state_->comm, &request), "MPI_Ibarrier");
  for (;; while_waiting()) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
    check();
  }
}

std::vector<std::string> RankGroup::gather(const std::string& mine) const {
  meet();
  return gather_texts(mine, state_->comm);
}

std::vector<std::string> RankGroup::gather_on_node(const std::string& mine) const {
  meet();
  return gather_texts(mine, state_->node.get());
}

void RankGroup::fail(const std::string& why) const {
  State& s = *state_;
  if (s.ends_job || s.failure) return;
  s.failure = std::make_unique<const std::string>(cat(rank_label(), ": ", why).substr(0, kLongestFailure));
  s.telling.reserve(static_cast<std::size_t>(s.size));
  for (int r = 0; r < s.size; ++r)
    if (r != s.rank)
      check_mpi(MPI_Isend(s.failure->data(), static_cast<int>(s.failure->size()), MPI_CHAR, r, kFailureTag, s.comm,
                          &s.telling.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
}

void RankGroup::demand_failure(const std::string& why) const {
  const std::lock_guard lock(state_->mutex);
  state_->demand = why;
  state_->demanded = true;
}

void RankGroup::check() const {
  State& s = *state_;
  if (++s.looks % kLookEvery == 0) look_out();
  if (s.ends_job) return;
  if (!s.failure && s.demanded.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(s.mutex);
    fail(s.demand);
  }
  if (!s.failure && s.looks % kLookEvery == 0) {
    int is_there = 0, length = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kFailureTag, s.comm, &is_there, &status), "MPI_Iprobe");
    if (is_there) {
      MPI_Get_count(&status, MPI_CHAR, &length);
      std::string text(static_cast<std::size_t>(length), '\0');
      check_mpi(MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, kFailureTag, s.comm, MPI_STATUS_IGNORE),
                "MPI_Recv");
      s.failure = std::make_unique<const std::string>(std::move(text));
    }
  }
  if (s.failure)
    throw GroupFailed(cat("the run of these ", s.size, " ranks has failed: ", *s.failure),
                      "the message of the rank that is named says what to do");
}

void RankGroup::set_lookout(std::function<void()> lookout) const {
  state_->lookout = std::move(lookout);
}

void RankGroup::look_out() const {
  State& s = *state_;
  if (!s.lookout || now_seconds() - s.looked_out < kLookOutSeconds) return;
  s.looked_out = now_seconds();
  s.lookout();
}

MPI_Comm duplicate(const RankGroup& group) {
  group.meet();
  return duplicate_of(group.state().comm);
}

}  // namespace ringtrain
