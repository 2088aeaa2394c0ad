#include "cluster/rank_group.h"

#include <time.h>

#include <algorithm>
#include <numeric>

#include "cluster/mpi_calls.h"
#include "cluster/sum_algorithms.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

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

RankGroup::State::State(MPI_Comm taken) : comm(with_errors_returned(taken)), node(part_on_node(comm)) {
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  host = processor_name();
  hosts = gather_texts(host, comm);
  MPI_Comm_rank(node, &node_rank);
  MPI_Comm_size(node, &node_size);
}

RankGroup::RankGroup(std::shared_ptr<const State> state) : state_(std::move(state)) {}

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

RankGroup RankGroup::of_job() {
  return RankGroup(std::make_shared<State>(duplicate_of(MPI_COMM_WORLD)));
}

std::optional<RankGroup> RankGroup::split(int colour) const {
  meet();
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(state().comm, colour < 0 ? MPI_UNDEFINED : colour, 0, &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return std::nullopt;
  return RankGroup(std::make_shared<State>(part));
}

// MPI's own blocking calls use a whole core. This class makes them only after meet(), in which a rank of an
// oversubscribed node sleeps. All ranks then begin the call at nearly the same time, and no rank waits long in it.
void RankGroup::meet() const {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(state().comm, &request), "MPI_Ibarrier");
  for (Waiter waiter;; waiter.pause()) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
  }
}

std::vector<std::string> RankGroup::gather(const std::string& mine) const {
  meet();
  return gather_texts(mine, state().comm);
}

std::vector<std::string> RankGroup::gather_on_node(const std::string& mine) const {
  meet();
  return gather_texts(mine, state().node);
}

MPI_Comm duplicate(const RankGroup& group) {
  group.meet();
  return with_errors_returned(duplicate_of(group.state().comm));
}

namespace {

constexpr int kExchanges = 20;

double time_of_day() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

std::vector<std::string> distinct_hosts(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> hosts;
  for (const std::string& host : host_of_rank)
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  return hosts;
}

std::vector<ClockOffset> clock_offsets(const RankGroup& group) {
  const OwnComm comm(duplicate(group));
  const RankLayout layout(group.hosts());
  std::vector<ClockOffset> offsets;
  if (group.rank() == 0) {
    offsets.resize(layout.nodes().size());
    for (std::size_t h = 1; h < offsets.size(); ++h) {
      const int other = layout.nodes()[h].front();
      offsets[h].round_trip = 1e9;
      for (int i = 0; i < kExchanges; ++i) {
        const double sent = time_of_day();
        double theirs = sent;
        check_mpi(MPI_Sendrecv_replace(&theirs, 1, MPI_DOUBLE, other, 0, other, 0, comm, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv_replace");
        const double answered = time_of_day();
        if (answered - sent < offsets[h].round_trip) offsets[h] = {theirs - (sent + answered) / 2, answered - sent};
      }
    }
  } else if (layout.node_of(group.rank()).front() == group.rank()) {
    for (int i = 0; i < kExchanges; ++i) {
      double mine = 0;
      check_mpi(MPI_Recv(&mine, 1, MPI_DOUBLE, 0, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv");
      mine = time_of_day();
      check_mpi(MPI_Send(&mine, 1, MPI_DOUBLE, 0, 0, comm), "MPI_Send");
    }
  }
  return offsets;
}

}  // namespace ringtrain
