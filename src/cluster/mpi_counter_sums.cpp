#include "cluster/mpi_counter_sums.h"

#include <algorithm>
#include <iterator>

#include "cluster/sent_bytes.h"

namespace ringtrain {

void MpiCounterSums::start(std::span<double> values, const PartsLeft& left) {
  ++*left;
  sums_.push_back({.values = values, .left = left});
  progress();
}

// Posts the messages of the next round in which this rank takes part. Returns false if no round is left. In round 0,
// ranks beyond the largest power of two give their values to a partner. In the last round, they get the sums back.
bool MpiCounterSums::post_round(Sum& sum) {
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  int power = 1, exchanges = 0;
  while (2 * power <= size) power *= 2, ++exchanges;
  const int beyond = size - power, last = exchanges + 1;
  const int count = static_cast<int>(sum.values.size());
  while (++sum.round <= last) {
    int from = MPI_PROC_NULL, to = MPI_PROC_NULL;
    if (rank >= power) {
      if (sum.round == 0) to = rank - power;
      if (sum.round == last) from = rank - power;
    } else if (sum.round == 0 || sum.round == last) {
      if (rank < beyond) (sum.round == 0 ? from : to) = rank + power;
    } else {
      from = to = rank ^ (1 << (sum.round - 1));
    }
    if (from == MPI_PROC_NULL && to == MPI_PROC_NULL) continue;
    sum.add_incoming = from != MPI_PROC_NULL && sum.round != last;
    sum.incoming.resize(sum.values.size());
    double* target = sum.round == last ? sum.values.data() : sum.incoming.data();
    if (from != MPI_PROC_NULL)
      check_mpi(MPI_Irecv(target, count, MPI_DOUBLE, from, tag_, comm_, &requests_[0]), "MPI_Irecv");
    if (to != MPI_PROC_NULL) {
      check_mpi(MPI_Isend(sum.values.data(), count, MPI_DOUBLE, to, tag_, comm_, &requests_[1]), "MPI_Isend");
      sent_bytes().by_message += std::ssize(std::as_bytes(sum.values));
    }
    return true;
  }
  return false;
}

void MpiCounterSums::progress() {
  while (!sums_.empty()) {
    int done = 0;
    check_mpi(MPI_Testall(2, requests_, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (!done) return;
    Sum& sum = sums_.front();
    if (sum.add_incoming)
      for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += sum.incoming[i];
    sum.add_incoming = false;
    if (post_round(sum)) continue;
    --*sum.left;
    sums_.pop_front();
  }
}

}  // namespace ringtrain
