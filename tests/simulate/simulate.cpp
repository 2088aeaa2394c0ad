// Sums of gradients, and whole steps, on simulated ranks: the program's own collectives under SimGrid's SMPI.
//
//   simulate WHAT ALGORITHM NODE_GB_S NODE_US NETWORK_GB_S NETWORK_US BUCKET_MIB [FORWARD_S BACKWARD_S UPDATE_S]
//
// WHAT: collectives | step. ALGORITHM: as communication.algorithm; library: MPI_Allreduce, bucket after bucket. Rank 0 prints a line "what seconds" for each; times are simulated. ResNet-50's gradient has
// 25,557,032 values. Values are not looked at: all ranks share the same few pages, so that thousands fit into memory.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "base/clock.h"
#include "cluster/communicator.h"
#include "cluster/gradient_reducer.h"
#include "cluster/rank_group.h"

using namespace ringtrain;

namespace {

constexpr std::size_t elements = 25'557'032, shared_from = 256 << 10;  // bytes

double after_barrier() {
  MPI_Barrier(MPI_COMM_WORLD);
  return MPI_Wtime();
}

template <class Work>
void timed(const char* what, Work work) {
  const double begin = after_barrier();
  work();
  const double seconds = after_barrier() - begin;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::printf("%s %.9f\n", what, seconds);
}

void sleep_seconds(double seconds) {
  if (seconds > 0) usleep(static_cast<useconds_t>(seconds * 1e6 + 0.5));
}

void sum_by_library(std::span<float> values, std::int64_t bucket) {
  for (std::int64_t at = 0; at < std::ssize(values); at += bucket) {
    const std::int64_t count = std::min(bucket, std::ssize(values) - at);
    MPI_Allreduce(MPI_IN_PLACE, values.data() + at, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

// `passes`: how often the watermark rises in the backward pass, as ResNet-50's layers let it.
void step(GradientReducer& reducer, double forward, double backward, double update) {
  constexpr int passes = 54;
  sleep_seconds(forward);
  reducer.begin();
  for (int i = 1; i <= passes; ++i) {
    sleep_seconds(backward / passes);
    reducer.ready(static_cast<std::int64_t>(elements) * i / passes);
  }
  double counters[8] = {};
  reducer.finish(counters);
  sleep_seconds(update);
}

}  // namespace

// Buffers of messages are large vectors, too. An array's size is not known when it is deleted.
void* operator new[](std::size_t bytes) {
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes) {
  void* memory = bytes >= shared_from ? SMPI_SHARED_MALLOC(bytes) : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t bytes) noexcept {
  if (bytes >= shared_from)
    SMPI_SHARED_FREE(memory);
  else
    std::free(memory);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const auto number = [&](int i) { return i < argc ? std::atof(argv[i]) : 0.0; };
    const std::string what = argv[1];
    SumChoice choice;
    const bool library = std::string(argv[2]) == "library";
    if (!library) choice.algorithm = argv[2];
    choice.links = {number(4) * 1e-6, number(3) * 1e9, number(6) * 1e-6, number(5) * 1e9};
    double begin = after_barrier();
    const RankGroup job = RankGroup::of_job();
    const auto communicator = make_mpi_communicator(job, 128 << 10, 0x7fffffff, choice);
    const double start = after_barrier() - begin;
    if (job.rank() == 0) std::printf("start %.9f\n", start);
    float* memory = static_cast<float*>(SMPI_SHARED_MALLOC(elements * sizeof(float)));
    const std::span<float> values(memory, elements);
    const auto bucket = static_cast<std::int64_t>(number(7) * (1 << 20) / sizeof(float));
    GradientReducer reducer(*communicator, values, bucket);
    if (what == "collectives") {
      timed("sum", [&] {
        if (library) return sum_by_library(values, bucket);
        reducer.begin();
        reducer.ready(elements);
        reducer.finish({});
      });
      double counters[8] = {};
      timed("counters", [&] { communicator->sum(std::span<double>(counters)); });
      timed("broadcast", [&] { communicator->broadcast(std::as_writable_bytes(values), 0); });
    } else {
      timed("step", [&] { step(reducer, number(8), number(9), number(10)); });
    }
    SMPI_SHARED_FREE(memory);
  }
  MPI_Finalize();
}
