// SMPI gives every rank its own copy of static variables.
#include "waits.h"

#include <algorithm>
#include <vector>

namespace simulate {
namespace {

struct Slot {
  MPI_Request* request;  // the program's own variable
  bool is_told;          // MPI_Testsome reports the end by an index; other calls by a null request
};
std::vector<Slot> asked;          // tested without success since the last wait
std::vector<MPI_Request*> ended;  // ended in a wait, and not yet reported
double waited_at = -1;            // no other request has ended at this time

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
  if (*number > 0) return MPI_SUCCESS;
  if (std::all_of(requests, requests + count, [](MPI_Request r) { return r == MPI_REQUEST_NULL; })) {
    *number = MPI_UNDEFINED;
    return MPI_SUCCESS;
  }
  const int code =
      is_new_time() ? PMPI_Testsome(count, requests, number, indices, MPI_STATUSES_IGNORE) : MPI_SUCCESS;
  if (*number == 0) note(count, requests, true);
  return code;
}

int barrier(MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Barrier(comm);
}

int broadcast(void* values, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Bcast(values, count, type, root, comm);
}

// Waits for one request at a time. SimGrid 3.32 keeps a list of the requests that a test has found ended, and searches
// this list at every end.
int wait_for_one() {
  std::erase_if(asked, [](const Slot& slot) { return *slot.request == MPI_REQUEST_NULL; });
  if (asked.empty()) return usleep(1);
  std::vector<MPI_Request> requests;
  for (const Slot& slot : asked) requests.push_back(*slot.request);
  int index = 0;
  const int code = PMPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS && index != MPI_UNDEFINED) {
    const Slot& slot = asked[static_cast<std::size_t>(index)];
    *slot.request = MPI_REQUEST_NULL;
    if (slot.is_told) ended.push_back(slot.request);
  }
  asked.clear();
  waited_at = MPI_Wtime();
  return code;
}

}  // namespace simulate
