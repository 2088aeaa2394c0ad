#include "cluster/communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "mpi_tests.h"
#include "rough_values.h"

namespace ringtrain {
namespace {

std::vector<std::size_t> odd_sizes(int ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  return {0, 1, 2, 3, p - 1, p, p + 1, 16 * p - 1, 16 * p, 16 * p + 1, 1000, 4097, 100003};
}

struct Cut {
  std::size_t chunk_bytes, max_count;
};

// The cuts are: one element a message, 5 elements, 7 elements (less than a cache line), several lanes a slot
// (cluster/mpi_sums.h), and everything in one message.
const Cut kCuts[] = {{4, 0x7fffffff}, {20, 0x7fffffff}, {256, 7}, {1024, 0x7fffffff}, {262144, 0x7fffffff}};

TEST(Communicator, SumsEveryElementOverRanksForOddSizesAndCuts) {
  for (const Cut& cut : kCuts) {
    const auto communicator = make_mpi_communicator(session().job(), cut.chunk_bytes, cut.max_count);
    for (const std::size_t count : odd_sizes(session().size())) {
      if (cut.chunk_bytes < 1024 && count > 5000) continue;  // one element a message would take minutes
      std::vector<float> values = exact_values(session().rank(), count);
      communicator->sum(values);
      EXPECT_EQ(values, exact_sums(session().size(), count))
          << count << " elements, chunks of " << cut.chunk_bytes << " bytes, at most " << cut.max_count;
    }
  }
}

TEST(Communicator, SumsAMillionAndThreeElements) {
  const auto communicator = make_mpi_communicator(session().job(), 65536);
  std::vector<float> values = exact_values(session().rank(), 1000003);
  communicator->sum(values);
  EXPECT_EQ(values, exact_sums(session().size(), 1000003));
}

TEST(Communicator, TouchesNothingOutsideTheVector) {
  const auto communicator = make_mpi_communicator(session().job(), 64);
  std::vector<float> values(1003 + 32, -7.0f);
  const std::vector<float> mine = exact_values(session().rank(), 1003);
  std::copy(mine.begin(), mine.end(), values.begin() + 16);
  communicator->sum(std::span(values).subspan(16, 1003));
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], -7.0f);
    EXPECT_EQ(values[1003 + 16 + i], -7.0f);
  }
}

TEST(Communicator, ManySumsUnderWayFinishInAnyOrderOfWaiting) {
  const auto communicator = make_mpi_communicator(session().job(), 128);
  const int sums = 40;
  std::vector<std::vector<float>> values;
  std::vector<std::unique_ptr<Pending>> pending;
  for (int i = 0; i < sums; ++i) values.push_back(exact_values(session().rank(), static_cast<std::size_t>(i * i), i));
  for (auto& vector : values) pending.push_back(communicator->start_sum(vector));
  // Each rank waits for the sums in another order.
  for (int i = 0; i < sums; ++i) {
    const int next = (i * 17 + session().rank() * 5) % sums;
    pending[static_cast<std::size_t>(next)]->finish();
    EXPECT_EQ(values[static_cast<std::size_t>(next)],
              exact_sums(session().size(), values[static_cast<std::size_t>(next)].size(), next));
  }
}

TEST(Communicator, CountersAndVectorsUnderWayTogetherDoNotMix) {
  const auto communicator = make_mpi_communicator(session().job(), 256);
  const int rank = session().rank(), ranks = session().size();
  std::vector<float> first = exact_values(rank, 5001, 1), second = exact_values(rank, 333, 2);
  std::vector<double> one = {rank + 0.5, 1.0}, two(77, rank);
  auto a = communicator->start_sum(std::span(first));
  auto b = communicator->start_sum(std::span(one));
  auto c = communicator->start_sum(std::span(second));
  auto d = communicator->start_sum(std::span(two));
  if (rank % 2 == 0)
    d->finish(), c->finish(), b->finish(), a->finish();
  else
    a->finish(), b->finish(), c->finish(), d->finish();
  const double rank_sum = 0.5 * ranks * (ranks - 1);
  EXPECT_EQ(first, exact_sums(ranks, 5001, 1));
  EXPECT_EQ(second, exact_sums(ranks, 333, 2));
  EXPECT_EQ(one, (std::vector<double>{rank_sum + 0.5 * ranks, 1.0 * ranks}));
  EXPECT_EQ(two, std::vector<double>(77, rank_sum));
}

template <class T>
void expect_same_bits_as_rank_0(Communicator& communicator, const std::vector<T>& values) {
  std::vector<T> of_rank_0 = values;
  communicator.broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
  EXPECT_EQ(std::memcmp(of_rank_0.data(), values.data(), values.size() * sizeof(T)), 0);
}

TEST(Communicator, SumsOfVectorsHaveTheSameBitsOnAllRanks) {
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  std::vector<float> values = rough_values<float>(50021);
  communicator->sum(values);
  expect_same_bits_as_rank_0(*communicator, values);
}

TEST(Communicator, SumsOfCountersHaveTheSameBitsOnAllRanks) {
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  std::vector<double> values = rough_values<double>(501);
  communicator->sum(values);
  expect_same_bits_as_rank_0(*communicator, values);
}

TEST(Communicator, SumsCountersForOddSizesAndCuts) {
  for (const std::size_t max_count : {std::size_t{1}, std::size_t{5}, std::size_t{0x7fffffff}}) {
    const auto communicator = make_mpi_communicator(session().job(), 1024, max_count);
    for (const std::size_t count : {0u, 1u, 2u, 5u, 6u, 64u}) {
      std::vector<double> values(count), expected(count, 0.0);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = exact_value(session().rank(), i);
        for (int r = 0; r < session().size(); ++r) expected[i] += exact_value(r, i);
      }
      communicator->sum(values);
      EXPECT_EQ(values, expected) << count << " counters, at most " << max_count;
    }
  }
}

TEST(Communicator, AnAbandonedSumIsFinishedBeforeItsBufferGoes) {
  const auto communicator = make_mpi_communicator(session().job(), 64);
  std::vector<float> values = exact_values(session().rank(), 2000);
  { auto abandoned = communicator->start_sum(std::span(values)); }
  EXPECT_EQ(values, exact_sums(session().size(), 2000));
}

TEST(Communicator, ARankThatSkipsAheadToABroadcastStillHelpsEarlierSums) {
  const auto communicator = make_mpi_communicator(session().job(), 64);
  std::vector<float> values = exact_values(session().rank(), 3000);
  auto pending = communicator->start_sum(std::span(values));
  if (session().rank() == 0) pending->finish();
  EXPECT_EQ(broadcast_string(*communicator, session().rank() == 0 ? "weights" : "", 0), "weights");
  pending->finish();
  EXPECT_EQ(values, exact_sums(session().size(), 3000));
}

TEST(Communicator, TwoCommunicatorsDoNotHearEachOther) {
  const auto one = make_mpi_communicator(session().job(), 64), other = make_mpi_communicator(session().job(), 64);
  std::vector<float> a = exact_values(session().rank(), 500, 1), b = exact_values(session().rank(), 500, 2);
  const bool even = session().rank() % 2 == 0;
  auto first = even ? one->start_sum(std::span(a)) : other->start_sum(std::span(b));
  auto second = even ? other->start_sum(std::span(b)) : one->start_sum(std::span(a));
  for (bool finished = false; !finished;) {
    const bool first_done = first->done();
    finished = second->done() && first_done;
  }
  EXPECT_EQ(a, exact_sums(session().size(), 500, 1));
  EXPECT_EQ(b, exact_sums(session().size(), 500, 2));
}

TEST(Communicator, BroadcastReachesAllFromEveryRootInPieces) {
  for (const std::size_t max_count : {std::size_t{1000}, std::size_t{0x7fffffff}}) {
    const auto communicator = make_mpi_communicator(session().job(), 1024, max_count);
    for (int root = 0; root < session().size(); ++root) {
      for (const std::size_t count : {0u, 1u, 999u, 1000u, 2501u}) {
        std::vector<float> values = exact_values(session().rank(), count);
        communicator->broadcast(std::as_writable_bytes(std::span(values)), root);
        EXPECT_EQ(values, exact_values(root, count)) << "root " << root << ", " << count << " values";
      }
    }
  }
}

TEST(Communicator, GatherLaysRanksSideBySideAndScatterUndoesIt) {
  const auto ranks = static_cast<std::size_t>(session().size());
  for (const std::size_t max_count : {std::size_t{10}, std::size_t{0x7fffffff}}) {
    const auto communicator = make_mpi_communicator(session().job(), 1024, max_count);
    for (int root = 0; root < session().size(); ++root) {
      for (const std::size_t count : {0u, 1u, 9u, 10u, 11u, 1003u}) {
        const std::vector<float> mine = exact_values(session().rank(), count);
        std::vector<float> all(session().rank() == root ? ranks * count : 0);
        communicator->gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), root);
        if (session().rank() == root) {
          std::vector<float> expected;
          for (int r = 0; r < session().size(); ++r) {
            const std::vector<float> its = exact_values(r, count);
            expected.insert(expected.end(), its.begin(), its.end());
          }
          EXPECT_EQ(all, expected);
        }
        std::vector<float> back(count);
        communicator->scatter(std::as_bytes(std::span(all)), std::as_writable_bytes(std::span(back)), root);
        EXPECT_EQ(back, mine);
      }
    }
  }
}

TEST(Communicator, GatherRefusesAnOutputOfTheWrongSize) {
  const auto communicator = make_mpi_communicator(session().job(), 1024);
  if (session().rank() != 0) return;
  std::vector<std::byte> mine(3), all(3 * static_cast<std::size_t>(session().size()) + 1);
  EXPECT_THROW(communicator->gather(mine, all, 0), Error);
  EXPECT_THROW(communicator->broadcast({}, session().size()), Error);
}

TEST(Communicator, StringsOfAnyLengthArriveWhole) {
  const auto communicator = make_mpi_communicator(session().job(), 1024, 1000);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{12345}}) {
    std::string text(length, 'x');
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>(i % 251);
    const int root = session().size() - 1;
    EXPECT_EQ(broadcast_string(*communicator, session().rank() == root ? text : "other", root), text);
  }
}

TEST(Communicator, BarrierHoldsUntilTheLastRankComes) {
  const auto communicator = make_mpi_communicator(session().job(), 1024);
  for (int late = 0; late < session().size(); ++late) {
    if (session().rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    double came = now_seconds(), last_came = 0;
    communicator->barrier();
    const double left = now_seconds();
    MPI_Allreduce(&came, &last_came, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const bool one_clock = session().node_size() == session().size();
    EXPECT_TRUE(!one_clock || left >= last_came) << "left " << last_came - left << " s too early";
  }
}

}  // namespace
}  // namespace ringtrain
