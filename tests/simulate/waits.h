// Included before every file of the program (-include): what its looks at unfinished messages are in simulated time.
//
// A look costs nothing there, so a rank that looks again and again would never let time pass. Where the program offers
// its CPU to others (cluster/waiting.h), a simulated rank sleeps until one of the messages that it has looked at has
// ended. SimGrid's own way, an injected time for every look at every request, makes a rank with 32 requests wait 32
// times as long for each message, and a simulation of thousands of ranks endless.
#pragma once

#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

namespace simulate {

// As MPI's calls of these names.
int test(MPI_Request* request, int* done, MPI_Status* status);
int test_all(int count, MPI_Request* requests, int* done, MPI_Status* statuses);
int test_some(int count, MPI_Request* requests, int* ended, int* indices, MPI_Status* statuses);

// They block, which the driver's calls allow: SimGrid's own are linear in the ranks.
int barrier(MPI_Comm comm, MPI_Request* request);
int broadcast(void* values, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request);

// Returns when a message has ended that was looked at in vain since the last call.
int wait_for_one();

}  // namespace simulate

#undef MPI_Test
#undef MPI_Testall
#undef MPI_Testsome
#undef MPI_Ibarrier
#undef MPI_Ibcast
#undef nanosleep
#define MPI_Test(request, done, status) simulate::test(request, done, status)
#define MPI_Testall(count, requests, done, statuses) simulate::test_all(count, requests, done, statuses)
#define MPI_Testsome(count, requests, ended, indices, statuses) \
  simulate::test_some(count, requests, ended, indices, statuses)
#define MPI_Ibarrier(comm, request) simulate::barrier(comm, request)
#define MPI_Ibcast(values, count, type, root, comm, request) \
  simulate::broadcast(values, count, type, root, comm, request)
#define sched_yield() simulate::wait_for_one()
#define nanosleep(moment, rest) simulate::wait_for_one()
