// Compares sums over ranks with MPI_Allreduce, and measures which share of the sums is hidden by computation.
//
//   mpirun -n 2 all_reduce_bench [algorithm] [chunk_kib ...]        default: auto 64 256 1024
//
// algorithm is a value of communication.algorithm: auto, ring, halving, hierarchical or mpi.
//
// The bus bandwidth is 2 (p - 1) / p x bytes / seconds, which is the rate at which a rank must send (as in nccl-tests).
// The result is the best of several runs, in which the two sides take turns, because other processes disturb the
// measurement. The hidden share is 1 - exposed / stand-alone.
#include <mpi.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cluster/communicator.h"
#include "cluster/gradient_reducer.h"
#include "cluster/launcher.h"
#include "cluster/session.h"

using namespace ringtrain;

namespace {

constexpr std::size_t resnet50_bytes = 25'557'032 * sizeof(float);

// A job is as slow as its slowest rank.
double slowest(double seconds) {
  double all = 0;
  MPI_Allreduce(&seconds, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

template <class Work>
double timed(Work work) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = now_seconds();
  work();
  return slowest(now_seconds() - start);
}

// A compute kernel whose data stay in the first-level cache.
float compute(double seconds) {
  static float data[1024];
  const double end = now_seconds() + seconds;
  while (now_seconds() < end)
    for (float& x : data) x = x * 0.999f + 1.0f;
  return data[7];
}

struct Overlap {
  double alone, exposed, slowdown;
};

// One step has `kernels` kernels of 100 us, after each of which the watermark rises by the same amount, and then
// finish().
Overlap overlap(Communicator& communicator, std::span<float> gradients, std::int64_t bucket, int kernels) {
  constexpr double kKernel = 100e-6;
  Overlap best{1e9, 1e9, 1e9};
  GradientReducer reducer(communicator, gradients, bucket);
  volatile float sink = 0;
  for (int run = 0; run < 15; ++run) {
    best.alone = std::min(best.alone, timed([&] { communicator.sum(gradients); }));
    double exposed = 0;
    const double total = timed([&] {
      reducer.begin();
      for (int k = 1; k <= kernels; ++k) {
        sink = compute(kKernel);
        reducer.ready(std::ssize(gradients) * k / kernels);
      }
      double counter = 1;
      reducer.finish(std::span(&counter, 1));
      exposed = reducer.exposed_seconds();
    });
    best.slowdown = std::min(best.slowdown, total);
    best.exposed = std::min(best.exposed, slowest(exposed));
    std::ranges::fill(gradients, 1.0f);
  }
  best.slowdown /= kernels * kKernel;
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const Session session(&argc, &argv);
  std::vector<std::size_t> chunks_kib;
  SumChoice choice;
  if (argc > 1 && std::isalpha(argv[1][0])) choice.algorithm = *++argv, --argc;
  for (int i = 1; i < argc; ++i) chunks_kib.push_back(static_cast<std::size_t>(std::atol(argv[i])));
  if (chunks_kib.empty()) chunks_kib = {64, 256, 1024};
  const bool prints = session.rank() == 0;
  const char* mechanism = std::getenv("OMPI_MCA_btl_vader_single_copy_mechanism");
  if (prints) {
    std::printf("%d ranks on %s, %s, single copy: %s%s\n", session.size(), session.host().c_str(),
                mpi_version().c_str(), mechanism != nullptr ? mechanism : "default",
                session.oversubscribed() ? ", oversubscribed" : "");
    std::printf("%s: bus bandwidth, MB/s (and us)\n%10s %16s", choice.algorithm.c_str(), "bytes", "MPI_Allreduce");
    for (const std::size_t kib : chunks_kib) std::printf("   %10zu KiB", kib);
    std::printf("\n");
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const std::size_t kib : chunks_kib)
    communicators.push_back(make_mpi_communicator(session.job(), kib * 1024, 0x7fffffff, choice));
  std::vector<float*> memory;
  for (const auto& communicator : communicators)
    memory.push_back(static_cast<float*>(communicator->allocate(resnet50_bytes)));

  const double factor = 2.0 * (session.size() - 1) / session.size();
  for (std::size_t bytes = 4096; bytes <= (64u << 20); bytes *= 4) {
    std::vector<float> values(bytes / sizeof(float), 0.0f);
    std::vector<double> best(communicators.size() + 1, 1e9);
    const int runs = bytes <= (1u << 20) ? 40 : 8;
    for (int run = 0; run < runs; ++run) {
      best[0] = std::min(best[0], timed([&] {
                           MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT,
                                         MPI_SUM, MPI_COMM_WORLD);
                         }));
      for (std::size_t i = 0; i < communicators.size(); ++i)
        best[i + 1] = std::min(best[i + 1], timed([&] { communicators[i]->sum({memory[i], values.size()}); }));
    }
    if (prints) {
      std::printf("%10zu", bytes);
      for (const double seconds : best)
        std::printf("  %6.0f (%6.0f)", factor * static_cast<double>(bytes) / seconds / 1e6, seconds * 1e6);
      std::printf("\n");
    }
  }

  if (prints)
    std::printf(
        "\nhidden behind kernels of 100 us (the last size: ResNet-50's gradient)\n%10s %10s %8s  %9s %10s %8s %9s\n",
        "bytes", "bucket KiB", "chunk", "alone us", "exposed us", "hidden", "step/comp");
  for (const std::size_t bytes : {std::size_t{2} << 20, std::size_t{8} << 20, std::size_t{32} << 20, resnet50_bytes}) {
    for (const std::int64_t bucket_kib : {256, 1024, 4096}) {
      for (std::size_t i = 0; i < communicators.size(); ++i) {
        const std::span<float> gradients(memory[i], bytes / sizeof(float));
        const double alone = timed([&] { communicators[i]->sum(gradients); });
        const int kernels = std::max(20, static_cast<int>(3 * alone / 100e-6));  // three times the time of the sums
        const Overlap result = overlap(*communicators[i], gradients, bucket_kib * 256, kernels);
        if (prints)
          std::printf("%10zu %10lld %8zu  %9.0f %10.0f %7.0f%% %9.3f\n", bytes, static_cast<long long>(bucket_kib),
                      chunks_kib[i], result.alone * 1e6, result.exposed * 1e6,
                      100 * (1 - result.exposed / result.alone), result.slowdown);
      }
    }
  }
  for (std::size_t i = 0; i < communicators.size(); ++i) communicators[i]->release(memory[i]);
  return 0;
}
