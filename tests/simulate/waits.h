// Replaces MPI's tests of unfinished messages in simulated time. It is included before every file of the program
// (-include).
//
// A test costs no simulated time, so a rank that tests again and again would never let time pass. Where the program
// offers its CPU to other ranks (cluster/waiting.h), a simulated rank sleeps until one of the messages that it has
// tested has ended, or until another rank of its node rings. SimGrid's own way adds a fixed time for every test of
// every request. A rank with 32 requests then waits 32 times as long for each message, and a simulation of thousands of
// ranks takes far too long.
#pragma once

#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>

namespace simulate {

// These functions behave as MPI's functions of similar names.
int test(MPI_Request* request, int* done, MPI_Status* status);
int test_all(int count, MPI_Request* requests, int* done, MPI_Status* statuses);
int test_some(int count, MPI_Request* requests, int* ended, int* indices, MPI_Status* statuses);

// These functions block, which the driver's calls allow. SimGrid's own non-blocking calls take time that is linear in
// the number of ranks.
int barrier(MPI_Comm comm, MPI_Request* request);
int broadcast(void* values, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request);

// Waits until one of the messages has ended that were tested without success since the last call, or until another rank
// has rung since then. Returns at once after look_again().
int wait_for_one();

// Call this for every step that a rank begins. The rank must look at the step once before it may sleep.
int look_again(int result = 0);

// With a bell, a rank tells another rank of its node that there is something new in memory. A rank that sleeps wakes up
// after the time of an empty message within the node.
struct Bell;
Bell& own_bell();
void ring(Bell& other);

// Lets the simulated time pass in which a rank reads so many bytes of another rank in place. The rank does nothing else
// in this time.
void take_time_to_read(std::size_t bytes);
void set_read_rate(double bytes_per_second);

}  // namespace simulate

#undef MPI_Isend
#undef MPI_Irecv
#undef MPI_Test
#undef MPI_Testall
#undef MPI_Testsome
#undef MPI_Ibarrier
#undef MPI_Ibcast
#undef nanosleep
#define MPI_Isend(...) simulate::look_again(PMPI_Isend(__VA_ARGS__))
#define MPI_Irecv(...) simulate::look_again(PMPI_Irecv(__VA_ARGS__))
#define MPI_Test(request, done, status) simulate::test(request, done, status)
#define MPI_Testall(count, requests, done, statuses) simulate::test_all(count, requests, done, statuses)
#define MPI_Testsome(count, requests, ended, indices, statuses) \
  simulate::test_some(count, requests, ended, indices, statuses)
#define MPI_Ibarrier(comm, request) simulate::barrier(comm, request)
#define MPI_Ibcast(values, count, type, root, comm, request) \
  simulate::broadcast(values, count, type, root, comm, request)
#define sched_yield() simulate::wait_for_one()
#define nanosleep(moment, rest) simulate::wait_for_one()
