// Tests sums whose values the ranks of a node read in place: no messages travel, a rank keeps its values until the
// others have read them, and ranks that cannot share memory sum by messages.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "cluster/communicator.h"
#include "cluster/mpi_sums.h"
#include "cluster/node_memory.h"
#include "cluster/waiting.h"
#include "mpi_tests.h"
#include "summed_vector.h"

namespace ringtrain {
namespace {

std::vector<int> all_ranks() {
  std::vector<int> ranks(static_cast<std::size_t>(session().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Stands for a machine that cannot share memory. No file may be larger than `bytes`, and shared memory is a file.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit low = before_;
    low.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &low);
  }
  ~SmallFiles() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(NodeExchange, LanesOfItsMemoryNeedNoMessages) {
  const int ranks = session().size(), rank = session().rank();
  if (ranks == 1) GTEST_SKIP() << "one rank has nothing to exchange";
  constexpr std::size_t length = 10007;
  NodeExchange node(session().job(), all_ranks(), MpiLanes::slots);
  auto* memory = static_cast<float*>(node.allocate(length * sizeof(float)));
  std::vector<float> elsewhere = exact_values(rank, length, 1);
  std::ranges::copy(exact_values(rank, length), memory);
  EXPECT_TRUE(node.holds(memory) && node.holds(memory + length - 1));
  EXPECT_FALSE(node.holds(elsewhere.data()));
  EXPECT_FALSE(node.reaches(-1));
  EXPECT_FALSE(node.reaches(ranks));

  MpiLanes lanes(MPI_COMM_WORLD);
  lanes.use(node);
  const auto open_after = [&](float* values, const PartsLeft& left) {
    lanes.start(values, ring_sum(rank, ranks, length, 1), left);
    return lanes.open_receives();
  };
  const PartsLeft left = std::make_shared<std::size_t>(0);
  EXPECT_EQ(open_after(memory, left), 0);
  EXPECT_EQ(open_after(elsewhere.data(), left), 1);
  for (Waiter waiter; *left > 0; waiter.pause()) lanes.progress();
  EXPECT_EQ(std::vector<float>(memory, memory + length), exact_sums(ranks, length));
  EXPECT_EQ(elsewhere, exact_sums(ranks, length, 1));
  node.release(memory);
  EXPECT_FALSE(node.holds(memory));
}

// A sum is finished on a rank when no other rank needs its values any more.
TEST(NodeExchange, ValuesMayChangeAsSoonAsTheSumIsFinished) {
  const int ranks = session().size(), rank = session().rank();
  for (const char* algorithm : {"ring", "halving", "hierarchical"})
    for (const std::size_t length : {37u, 5000u, 70001u}) {
      const auto communicator = make_mpi_communicator(session().job(), 1 << 12, 0x7fffffff, {.algorithm = algorithm});
      SummedVector vector(*communicator, std::vector<float>(length), true);
      for (int step = 0; step < 8; ++step) {
        std::ranges::copy(exact_values(rank, length, step), vector.span().begin());
        if (step % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the last to come
        const auto pending = communicator->start_sum(vector.span());
        if ((step + 1) % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the last to read
        pending->finish();
        ASSERT_EQ(vector.values(), exact_sums(ranks, length, step)) << algorithm << ", step " << step;
      }
    }
}

TEST(NodeExchange, MemoryThatWasReleasedIsGivenAgain) {
  const auto communicator = make_mpi_communicator(session().job(), 1 << 12);
  SummedVector kept(*communicator, exact_values(session().rank(), 300, 99), true);
  for (int again = 0; again < 20; ++again) {
    const auto length = static_cast<std::size_t>(1000 * (again % 3) + 1);
    SummedVector vector(*communicator, exact_values(session().rank(), length, again), true);
    communicator->sum(vector.span());
    EXPECT_EQ(vector.values(), exact_sums(session().size(), length, again));
  }
  communicator->sum(kept.span());
  EXPECT_EQ(kept.values(), exact_sums(session().size(), 300, 99));
}

// If one rank cannot share its memory, the ranks of its node sum by messages. Here the first allocation fails, or a
// later one.
TEST(NodeExchange, RanksThatCannotShareSumByMessages) {
  constexpr std::size_t length = 100'000;
  for (const int limited : {0, session().size() - 1})
    for (const bool at_once : {true, false}) {
      const auto communicator = make_mpi_communicator(session().job(), 1 << 14);
      if (!at_once) communicator->release(communicator->allocate(1));
      const auto limit = session().rank() == limited ? std::make_unique<SmallFiles>(at_once ? 1 : 1 << 16) : nullptr;
      SummedVector vector(*communicator, exact_values(session().rank(), length), true);
      communicator->sum(vector.span());
      EXPECT_EQ(vector.values(), exact_sums(session().size(), length));
    }
}

}  // namespace
}  // namespace ringtrain
