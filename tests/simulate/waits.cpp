// SMPI gives every rank its own copy of static variables.
#include "waits.h"

#include <simgrid/actor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace simulate {

struct Bell {
  int rank;                // of its owner, in MPI_COMM_WORLD
  bool has_rung = false;   // another rank has rung since the owner last looked
  bool is_asleep = false;  // the owner sleeps
  bool rings = false;      // a message to the owner is under way
};

namespace {

constexpr std::int64_t large_broadcast = 512 << 10;  // bytes
constexpr int bell_tag = 1;  // in MPI_COMM_WORLD, where the driver sends no other messages from rank to rank

struct Slot {
  MPI_Request* request;  // the program's own variable
  bool is_told;          // true: MPI_Testsome asked, and an index reports the end; false: a null request does
};
std::vector<Slot> asked;          // tested without success since the last wait
std::vector<MPI_Request*> ended;  // ended in a wait, and not yet reported
double waited_at = -1;            // no other request has ended at this time
Bell* bell = nullptr;             // null: nobody rings for this rank
MPI_Request next_ring = MPI_REQUEST_NULL;
bool must_look = false;
double read_rate = 1e9;

bool is_new_time() {
  return MPI_Wtime() > waited_at;
}

void note(int count, MPI_Request* requests, bool is_told) {
  for (int i = 0; i < count; ++i)
    if (requests[i] != MPI_REQUEST_NULL &&
        std::ranges::none_of(asked, [&](const Slot& slot) { return slot.request == requests + i; }))
      asked.push_back({requests + i, is_told});
}

}  // namespace

int test(MPI_Request* request, int* done, MPI_Status* status) {
  return test_all(1, request, done, status);
}

int test_all(int count, MPI_Request* requests, int* done, MPI_Status*) {
  *done = 1;
  for (int i = 0; i < count && *done != 0; ++i) *done = requests[i] == MPI_REQUEST_NULL;
  if (*done != 0) return MPI_SUCCESS;
  const int code = is_new_time() ? PMPI_Testall(count, requests, done, MPI_STATUSES_IGNORE) : MPI_SUCCESS;
  if (*done == 0) note(count, requests, false);
  return code;
}

int test_some(int count, MPI_Request* requests, int* number, int* indices, MPI_Status*) {
  *number = 0;
  std::erase_if(ended, [&](MPI_Request* request) {
    if (request < requests || request >= requests + count) return false;
    indices[(*number)++] = static_cast<int>(request - requests);
    return true;
  });
  if (*number > 0) {
    note(count, requests, true);
    return MPI_SUCCESS;
  }
  if (std::all_of(requests, requests + count, [](MPI_Request r) { return r == MPI_REQUEST_NULL; })) {
    *number = MPI_UNDEFINED;
    return MPI_SUCCESS;
  }
  const int code = is_new_time() ? PMPI_Testsome(count, requests, number, indices, MPI_STATUSES_IGNORE) : MPI_SUCCESS;
  note(count, requests, true);
  return code;
}

int barrier(MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Barrier(comm);
}

// A large vector is scattered down a binomial tree; then the pieces go around a ring, as in MPICH.
int broadcast(void* values, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  int rank = 0, ranks = 1, bytes_each = 1;
  MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &ranks), MPI_Type_size(type, &bytes_each);
  const std::int64_t bytes = std::int64_t{count} * bytes_each, piece = (bytes + ranks - 1) / ranks;
  if (bytes < large_broadcast) return PMPI_Bcast(values, count, type, root, comm);
  const int place = (rank - root + ranks) % ranks;
  const auto rank_at = [&](int p) { return (p + root) % ranks; };
  const auto begin = [&](int p) { return static_cast<char*>(values) + std::min(p * piece, bytes); };
  const auto size = [&](int p, int pieces) { return static_cast<int>(begin(std::min(p + pieces, ranks)) - begin(p)); };
  int below = 1;
  while (below < ranks && (place & below) == 0) below *= 2;
  if (place > 0)
    PMPI_Recv(begin(place), size(place, below), MPI_BYTE, rank_at(place - below), 0, comm, MPI_STATUS_IGNORE);
  while ((below /= 2) > 0)
    if (const int to = place + below; to < ranks) PMPI_Send(begin(to), size(to, below), MPI_BYTE, rank_at(to), 0, comm);
  const int next = rank_at(place + 1), last = rank_at(place + ranks - 1);
  for (int step = 0; step + 1 < ranks; ++step) {
    const int sent = (place - step + ranks) % ranks, received = (sent + ranks - 1) % ranks;
    PMPI_Sendrecv(begin(sent), size(sent, 1), MPI_BYTE, next, 0, begin(received), size(received, 1), MPI_BYTE, last, 0,
                  comm, MPI_STATUS_IGNORE);
  }
  return MPI_SUCCESS;
}

// Waits for one request at a time. SimGrid 3.32 keeps a list of the requests that a test has found ended, and searches
// this list at every end.
int wait_for_one() {
  if (std::exchange(must_look, false) | (bell != nullptr && std::exchange(bell->has_rung, false))) return 0;
  std::erase_if(asked, [](const Slot& slot) { return *slot.request == MPI_REQUEST_NULL; });
  if (asked.empty() && bell == nullptr) return usleep(1);
  std::vector<MPI_Request> requests;
  for (const Slot& slot : asked) requests.push_back(*slot.request);
  if (bell != nullptr) {
    bell->is_asleep = true;  // before the receive: other ranks run meanwhile, and a ring must not be lost
    if (next_ring == MPI_REQUEST_NULL)
      PMPI_Irecv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, bell_tag, MPI_COMM_WORLD, &next_ring);
    requests.push_back(next_ring);
  }
  int index = 0;
  const int code = PMPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE);
  if (bell != nullptr) bell->is_asleep = bell->has_rung = false;
  if (code == MPI_SUCCESS && index != MPI_UNDEFINED) {
    if (static_cast<std::size_t>(index) == asked.size()) {
      next_ring = MPI_REQUEST_NULL;
      bell->rings = false;
    } else {
      const Slot& slot = asked[static_cast<std::size_t>(index)];
      *slot.request = MPI_REQUEST_NULL;
      if (slot.is_told) ended.push_back(slot.request);
    }
  }
  asked.clear();
  waited_at = MPI_Wtime();
  return code;
}

int look_again(int result) {
  must_look = true;
  return result;
}

Bell& own_bell() {
  if (bell == nullptr) {
    bell = new Bell{};
    MPI_Comm_rank(MPI_COMM_WORLD, &bell->rank);
  }
  return *bell;
}

void ring(Bell& other) {
  other.has_rung = true;
  if (!other.is_asleep || std::exchange(other.rings, true)) return;
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Isend(nullptr, 0, MPI_BYTE, other.rank, bell_tag, MPI_COMM_WORLD, &request);
  PMPI_Request_free(&request);
}

void set_read_rate(double bytes_per_second) {
  read_rate = bytes_per_second;
}

void take_time_to_read(std::size_t bytes) {
  sg_actor_sleep_for(static_cast<double>(bytes) / read_rate);
}

}  // namespace simulate
