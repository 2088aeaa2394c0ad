// Runs parts of a training job on simulated ranks, with the program's own collectives under SimGrid's SMPI.
//
//   simulate PARTS ALGORITHM RANKS_PER_NODE NODE_GB_S NODE_US NETWORK_GB_S NETWORK_US ELEMENTS BUCKET_ELEMENTS
//            [WATERMARK FORWARD_S BACKWARD_S UPDATE_S LOOK_US]
//
// PARTS are joined by commas: sum, counters, gather, broadcast, step. The start of the job always comes first.
// ALGORITHM is a value of communication.algorithm, or `library` for MPI_Allreduce, bucket after bucket. Ranks of a node
// read each other's values in place at NODE_GB_S (node_exchange.cpp). WATERMARK is a file of lines "time share", which
// are shares of the backward pass and of the gradient. LOOK_US is the time between two looks of a rank at its messages
// during the backward pass, which happen between kernels in a real run. With 0, the rank looks at watermarks only. Rank
// 0 prints a line "what seconds" for each result. All times are simulated.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/gradient_reducer.h"
#include "cluster/rank_group.h"
#include "cluster/waiting.h"

using namespace ringtrain;

namespace {

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
  if (rank == 0) std::printf("%s %.9f\n", what, seconds), std::fflush(stdout);
}

void compute(double seconds) {
  if (seconds > 0) usleep(static_cast<useconds_t>(seconds * 1e6 + 0.5));
}

void sum_by_library(std::span<float> values, std::int64_t bucket) {
  for (std::int64_t at = 0; at < std::ssize(values); at += bucket) {
    const std::int64_t count = std::min(bucket, std::ssize(values) - at);
    MPI_Allreduce(MPI_IN_PLACE, values.data() + at, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

struct Point {
  double time = 0, share = 0;
};
std::vector<Point> read_watermark(const char* path) {
  std::ifstream in(path);
  std::vector<Point> points;
  for (Point p; in >> p.time >> p.share;) points.push_back(p);
  return points;
}

void step(GradientReducer& reducer, std::int64_t elements, const std::vector<Point>& watermark, double forward,
          double backward, double update, double look) {
  const auto compute_and_look = [&](double seconds) {
    for (; look > 0 && seconds > look; seconds -= look) compute(look), reducer.poll();
    compute(seconds);
  };
  compute(forward);
  reducer.begin();
  double now = 0;
  for (const Point& p : watermark) {
    compute_and_look(backward * (p.time - now));
    now = p.time;
    reducer.ready(static_cast<std::int64_t>(p.share * static_cast<double>(elements)));
  }
  compute_and_look(backward * (1 - now));
  double counters[8] = {};
  reducer.finish(counters);
  compute(update);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  node_is_oversubscribed = true;  // waiting ranks offer their CPU at once (waits.h)
  {
    const auto number = [&](int i) { return std::atof(argv[i]); };
    const bool library = std::string(argv[2]) == "library";
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    SumChoice choice;
    if (!library) choice.algorithm = argv[2];
    choice.links = {.node = stated_link(number(5), number(4)), .network = stated_link(number(7), number(6))};
    simulate::set_read_rate(number(4) * 1e9);
    for (int r = 0; r < ranks; ++r) choice.node_of_rank.push_back(std::to_string(r / std::atoi(argv[3])));
    const std::int64_t elements = std::atoll(argv[8]), bucket = std::atoll(argv[9]);

    const double begin = after_barrier();
    const RankGroup job = RankGroup::of_job();
    job.gather(std::string(200, 'x'));  // as long as the text that ranks send about their CPUs (binding.h)
    const auto communicator = make_mpi_communicator(job, 128 << 10, 0x7fffffff, choice);
    auto* memory = static_cast<float*>(communicator->allocate(elements * std::int64_t{sizeof(float)}));
    const double start = after_barrier() - begin;
    if (rank == 0) std::printf("start %.9f\n", start), std::fflush(stdout);

    const std::span<float> values(memory, static_cast<std::size_t>(elements));
    GradientReducer reducer(*communicator, values, bucket);
    std::istringstream parts(argv[1]);
    for (std::string part; std::getline(parts, part, ',');) {
      if (part == "sum") {
        timed("sum", [&] {
          if (library) return sum_by_library(values, bucket);
          reducer.begin();
          reducer.ready(elements);
          reducer.finish({});
        });
      } else if (part == "counters") {
        double counters[8] = {};
        timed("counters", [&] { communicator->sum(std::span<double>(counters)); });
      } else if (part == "gather") {
        const std::size_t own = values.size() / static_cast<std::size_t>(ranks);
        timed("gather", [&] {
          const std::span<float> all = values.first(rank == 0 ? own * static_cast<std::size_t>(ranks) : 0);
          communicator->gather(std::as_bytes(values.first(own)), std::as_writable_bytes(all), 0);
        });
      } else if (part == "broadcast") {
        timed("broadcast", [&] { communicator->broadcast(std::as_writable_bytes(values), 0); });
      } else if (part == "step") {
        const std::vector<Point> points = read_watermark(argv[10]);
        timed("step", [&] { step(reducer, elements, points, number(11), number(12), number(13), number(14) * 1e-6); });
      }
    }
    communicator->release(memory);
  }
  MPI_Finalize();
}
