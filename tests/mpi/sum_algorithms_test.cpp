// Tests every way of communication.algorithm on real messages. tests/unit/sum_schedule_test.cpp tests more ranks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "cluster/communicator.h"
#include "cluster/mpi_sums.h"
#include "cluster/waiting.h"
#include "mpi_tests.h"
#include "rough_values.h"
#include "summed_vector.h"

namespace ringtrain {
namespace {

// Names a node for each rank, as if every `per_node` ranks had a node of their own.
std::vector<std::string> nodes_of(int per_node) {
  std::vector<std::string> nodes;
  for (int r = 0; r < session().size(); ++r) nodes.push_back("node" + std::to_string(r / per_node));
  return nodes;
}

std::vector<SumChoice> all_choices() {
  std::vector<SumChoice> choices = {{.algorithm = "auto"},
                                    {.algorithm = "ring"},
                                    {.algorithm = "halving"},
                                    {.algorithm = "hierarchical"},
                                    {.algorithm = "mpi"}};
  for (const int per_node : {1, 2})
    if (session().size() % per_node == 0 && session().size() > per_node) {
      choices.push_back({.algorithm = "hierarchical", .node_of_rank = nodes_of(per_node)});
      choices.push_back({.algorithm = "halving", .node_of_rank = nodes_of(per_node)});
      choices.push_back({.algorithm = "auto", .node_of_rank = nodes_of(per_node)});
    }
  return choices;
}

std::string name_of(const SumChoice& choice) {
  return choice.algorithm + (choice.node_of_rank.empty() ? "" : " on nodes to " + choice.node_of_rank.back());
}

struct MessageCut {
  std::size_t chunk_bytes, max_count;
};

TEST(SumAlgorithms, SumEveryElementForOddSizesAndCuts) {
  for (const SumChoice& choice : all_choices())
    for (const MessageCut& cut :
         {MessageCut{20, 0x7fffffff}, MessageCut{256, 7}, MessageCut{1024, 1000}, MessageCut{131072, 0x7fffffff}}) {
      const auto communicator = make_mpi_communicator(session().job(), cut.chunk_bytes, cut.max_count, choice);
      auto* const memory = static_cast<float*>(communicator->allocate(300007 * sizeof(float)));
      for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 15u, 16u, 17u, 63u, 1000u, 4096u, 4097u, 300007u}) {
        if (cut.chunk_bytes < 1024 && count > 5000) continue;  // such short messages would take minutes
        for (const bool allocated : {false, true}) {
          std::vector<float> own = exact_values(session().rank(), count);
          if (allocated) std::ranges::copy(own, memory);
          const std::span<float> values{allocated ? memory : own.data(), count};
          communicator->sum(values);
          EXPECT_EQ(std::vector<float>(values.begin(), values.end()), exact_sums(session().size(), count))
              << name_of(choice) << ", " << count << " elements, chunks of " << cut.chunk_bytes << " bytes, at most "
              << cut.max_count << place_name(allocated);
        }
      }
      communicator->release(memory);
    }
}

TEST(SumAlgorithms, ManySumsUnderWayFinishInAnyOrderOfWaiting) {
  for (const SumChoice& choice : all_choices()) {
    const auto communicator = make_mpi_communicator(session().job(), 128, 0x7fffffff, choice);
    const int sums = 40;
    std::vector<std::unique_ptr<SummedVector>> vectors;
    std::vector<std::unique_ptr<Pending>> pending;
    for (int i = 0; i < sums; ++i)
      vectors.push_back(std::make_unique<SummedVector>(
          *communicator, exact_values(session().rank(), static_cast<std::size_t>(i * i), i), i % 3 != 0));
    for (const auto& vector : vectors) pending.push_back(communicator->start_sum(vector->span()));
    for (int i = 0; i < sums; ++i) {
      const auto next = static_cast<std::size_t>((i * 17 + session().rank() * 5) % sums);
      pending[next]->finish();
      EXPECT_EQ(vectors[next]->values(), exact_sums(session().size(), next * next, static_cast<int>(next)))
          << name_of(choice);
    }
  }
}

TEST(SumAlgorithms, FewLanesAreInTheNodeAtATimeAndAllArrive) {
  const int ranks = session().size(), rank = session().rank();
  if (ranks == 1) GTEST_SKIP() << "one rank sends nothing";
  std::vector<int> node(static_cast<std::size_t>(ranks));
  std::iota(node.begin(), node.end(), 0);
  for (const bool in_node : {true, false}) {
    MpiLanes lanes(MPI_COMM_WORLD);
    const PartsLeft left = std::make_shared<std::size_t>(0);
    const std::size_t length = 1001, count = 3 * MpiLanes::slots;
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(exact_values(rank, length, static_cast<int>(i)));
    for (auto& vector : values) {
      SumSchedule schedule = ring_sum(rank, ranks, length, 1);
      if (in_node) mark_steps_in_node(schedule, node);
      lanes.start(vector.data(), schedule, left);
    }
    EXPECT_EQ(lanes.open_receives(), in_node ? MpiLanes::lanes_in_node : MpiLanes::slots);
    for (Waiter waiter; *left > 0; waiter.pause()) lanes.progress();
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(values[i], exact_sums(ranks, length, static_cast<int>(i)));
  }
}

TEST(SumAlgorithms, HaveTheSameBitsOnAllRanksEachTimeAndInAnyMemory) {
  for (const SumChoice& choice : all_choices())
    for (const std::size_t count : {100u, 50021u}) {
      const auto communicator = make_mpi_communicator(session().job(), 4096, 0x7fffffff, choice);
      std::vector<float> first;
      for (int time = 0; time < 4; ++time) {
        SummedVector vector(*communicator, rough_values(count), time % 2 == 1);
        communicator->sum(vector.span());
        const std::vector<float> values = vector.values();
        std::vector<float> of_rank_0 = values;
        communicator->broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
        EXPECT_EQ(std::memcmp(of_rank_0.data(), values.data(), count * sizeof(float)), 0) << name_of(choice);
        if (time == 0) first = values;
        EXPECT_EQ(std::memcmp(first.data(), values.data(), count * sizeof(float)), 0) << name_of(choice);
      }
    }
}

TEST(SumAlgorithms, HalvesOfASumTravelBesideEachOfThem) {
  for (const SumChoice& choice : all_choices())
    for (const bool allocated : {false, true}) {
      const auto communicator = make_mpi_communicator(session().job(), 512, 0x7fffffff, choice);
      const int ranks = session().size();
      SummedVector halved(*communicator, exact_values(session().rank(), 3001, 1), allocated);
      std::vector<float> whole = exact_values(session().rank(), 2003, 2);
      const std::int64_t piece = (3001 + ranks - 1) / ranks;
      auto first = communicator->start_reduce_scatter(halved.span(), piece), second = communicator->start_sum(whole);
      second->finish(), first->finish();
      auto third = communicator->start_all_gather(halved.span(), piece);
      third->finish();
      EXPECT_EQ(halved.values(), exact_sums(ranks, 3001, 1)) << name_of(choice) << place_name(allocated);
      EXPECT_EQ(whole, exact_sums(ranks, 2003, 2)) << name_of(choice);
    }
}

TEST(SumAlgorithms, SayWhatTheyAre) {
  if (session().size() == 1) GTEST_SKIP() << "one rank sums nothing";
  const auto describe = [](const SumChoice& choice) {
    return make_mpi_communicator(session().job(), 1 << 17, 0x7fffffff, choice)->describe();
  };
  EXPECT_EQ(describe({.algorithm = "ring"}), "MPI, ring, chunks of 128 KiB");
  EXPECT_EQ(describe({.algorithm = "mpi"}), "MPI, sums by the library's own all-reduce");
  EXPECT_EQ(describe({.algorithm = "auto"}), session().size() == 3
                                                 ? "MPI, halving or, for large sums, ring (auto), chunks of 128 KiB"
                                                 : "MPI, halving (auto), chunks of 128 KiB");
}

}  // namespace
}  // namespace ringtrain
