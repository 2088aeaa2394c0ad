#include "cluster/clock_offsets.h"

#include <time.h>

#include <algorithm>

#include "cluster/rank_group_mpi.h"

namespace ringtrain {

namespace {

constexpr int kExchanges = 20;

double time_of_day() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

int first_rank_of(const std::string& host, const std::vector<std::string>& host_of_rank) {
  return static_cast<int>(std::find(host_of_rank.begin(), host_of_rank.end(), host) - host_of_rank.begin());
}

}  // namespace

std::vector<std::string> distinct_hosts(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> hosts;
  for (const std::string& host : host_of_rank)
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  return hosts;
}

std::vector<ClockOffset> clock_offsets(const RankGroup& group) {
  MPI_Comm comm = duplicate(group);
  const std::vector<std::string> hosts = distinct_hosts(group.hosts());
  std::vector<ClockOffset> offsets;
  if (group.rank() == 0) {
    offsets.resize(hosts.size());
    for (std::size_t h = 1; h < hosts.size(); ++h) {
      const int other = first_rank_of(hosts[h], group.hosts());
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
  } else if (first_rank_of(group.host(), group.hosts()) == group.rank()) {
    for (int i = 0; i < kExchanges; ++i) {
      double mine = 0;
      check_mpi(MPI_Recv(&mine, 1, MPI_DOUBLE, 0, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv");
      mine = time_of_day();
      check_mpi(MPI_Send(&mine, 1, MPI_DOUBLE, 0, 0, comm), "MPI_Send");
    }
  }
  MPI_Comm_free(&comm);
  return offsets;
}

}  // namespace ringtrain
