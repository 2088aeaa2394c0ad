// Tests groups of ranks. Each group works for itself, and a group that fails leaves the other groups and the job as
// they are.
#include <algorithm>
#include <functional>

#include "cluster/clock_offsets.h"
#include "cluster/rank_group.h"
#include "cluster/staged_communicator.h"
#include "cluster/watchdog.h"
#include "mpi_tests.h"
#include "tests/emulation/host_device.h"

namespace ringtrain {
namespace {

constexpr std::size_t kGroupChunkBytes = 1 << 18;  // MPI libraries send such long messages when the receiver is ready
constexpr std::size_t kManyValues = 3'000'000;     // one poll() of the ring does not finish such a sum

std::vector<float> sums_over(const std::vector<int>& ranks, std::size_t count) {
  std::vector<float> sums(count, 0);
  for (const int r : ranks)
    for (std::size_t i = 0; i < count; ++i) sums[i] += exact_value(r, i);
  return sums;
}

// Returns the ranks of the job with this colour. As in MPI_Comm_split, ranks of the same colour form a group.
std::vector<int> ranks_of(const std::function<int(int)>& colour_of, int colour) {
  std::vector<int> ranks;
  for (int r = 0; r < session().size(); ++r)
    if (colour_of(r) == colour) ranks.push_back(r);
  return ranks;
}

void expect_right_sums(Communicator& ring, const std::vector<int>& ranks) {
  std::vector<float> values = exact_values(session().rank(), 1000);
  ring.sum(std::span<float>(values));
  EXPECT_EQ(values, sums_over(ranks, 1000));
}

// Puts all ranks of the job into a new group and expects the group to work.
void expect_that_the_job_works() {
  const RankGroup all = *session().job().split(0);
  expect_right_sums(*make_mpi_communicator(all, kGroupChunkBytes), ranks_of([](int) { return 0; }, 0));
}

TEST(Groups, EachSumsOverItsOwnRanksAndTheOthersStayOut) {
  const auto colour_of = [](int rank) { return rank % 3 == 2 ? -1 : rank % 3; };
  const int me = session().rank();
  const std::optional<RankGroup> group = session().job().split(colour_of(me));
  ASSERT_EQ(group.has_value(), colour_of(me) >= 0);
  if (!group) return;
  EXPECT_EQ(group->rank(), me / 3) << "in the order of the ranks";
  EXPECT_FALSE(group->ends_job());
  const std::vector<int> ranks = ranks_of(colour_of, colour_of(me));
  EXPECT_EQ(group->size(), std::ssize(ranks));
  EXPECT_EQ(group->hosts().size(), ranks.size());
  expect_right_sums(*make_mpi_communicator(*group, 1 << 16), ranks);
}

TEST(Groups, AreSplitAgain) {
  const int me = session().rank();
  const RankGroup outer = *session().job().split(me % 2), inner = *outer.split(outer.rank() % 2);
  const std::vector<int> ranks = ranks_of([](int r) { return r % 4; }, me % 4);
  EXPECT_EQ(inner.size(), std::ssize(ranks));
  expect_right_sums(*make_mpi_communicator(inner, 1 << 16), ranks);
}

TEST(Groups, GatherTextsOfTheirRanksInOrder) {
  const RankGroup group = *session().job().split(session().rank() % 2);
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank * 100), 'a') + std::to_string(rank);
  };
  std::vector<std::string> expected;
  for (const int r : ranks_of([](int rank) { return rank % 2; }, session().rank() % 2)) expected.push_back(text(r));
  EXPECT_EQ(group.gather(text(session().rank())), expected);
}

// The last rank of the group fails, and all other ranks call `action`, which needs the last rank. Expects the other
// ranks to hear why the last rank failed.
void expect_failure_for_all(const RankGroup& group, Communicator& ring, const std::function<void()>& action,
                            const char* what) {
  const bool is_last = group.rank() == group.size() - 1;
  const std::string last = group.gather(rank_label()).back();
  try {
    if (is_last) throw Error("the disk is full");
    action();
    ADD_FAILURE() << what << " ended although a rank did not take part";
    ring.abort("");
  } catch (const GroupFailed& e) {
    ring.abort(e.what());
    const std::string error = e.what();
    EXPECT_NE(error.find(last), std::string::npos) << error;
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
  } catch (const Error& e) {
    ring.abort(e.what());
    EXPECT_TRUE(is_last) << e.what();
  }
  EXPECT_TRUE(group.failed());
}

TEST(Groups, ARankThatFailsEndsWhateverTheOthersOfItsGroupWaitFor) {
  std::vector<float> many(kManyValues), few(10), all(10 * static_cast<std::size_t>(session().size()));
  std::vector<double> counters(3);
  for (int action = 0; action < 8; ++action) {
    const RankGroup group = *session().job().split(0);
    const auto ring = make_mpi_communicator(group, kGroupChunkBytes);
    const std::pair<const char*, std::function<void()>> actions[] = {
        {"a sum", [&] { ring->sum(std::span(many)); }},
        {"a sum of counters", [&] { ring->sum(std::span(counters)); }},
        {"a barrier", [&] { ring->barrier(); }},
        {"a broadcast", [&] { ring->broadcast(std::as_writable_bytes(std::span(many)), 0); }},
        {"a gathering", [&] { ring->gather(few, group.rank() == 0 ? std::span(all) : std::span<float>(), 0); }},
        {"a scattering", [&] { ring->scatter(group.rank() == 0 ? std::span(all) : std::span<float>(), few, 0); }},
        {"making a communicator", [&] { make_mpi_communicator(group, kGroupChunkBytes); }},
        {"a split", [&] { group.split(0); }}};
    expect_failure_for_all(group, *ring, actions[action].second, actions[action].first);
    EXPECT_THROW(ring->sum(std::span(few)), Error) << "after abort()";
  }
  expect_that_the_job_works();
}

TEST(Groups, OneThatFailsInTheMiddleOfASumLeavesTheOthersAlone) {
  const int me = session().rank();
  const std::vector<int> ranks = ranks_of([](int r) { return r % 2; }, me % 2);
  for (int repetition = 0; repetition < 3; ++repetition) {
    const RankGroup group = *session().job().split(me % 2);
    const auto ring = make_mpi_communicator(group, kGroupChunkBytes);
    std::vector<float> values = exact_values(me, kManyValues);
    std::vector<double> counters(5, 1);
    if (me % 2 == 1) {
      for (int i = 0; i < 20; ++i) expect_right_sums(*ring, ranks);
      EXPECT_FALSE(group.failed());
    } else {
      const auto sum = ring->start_sum(std::span(values));
      const auto small = ring->start_sum(std::span(counters));
      for (int i = 0; i < 10 && group.rank() == group.size() - 1; ++i) static_cast<void>(sum->done());
      const auto next = group.rank() == group.size() - 1 ? nullptr : ring->start_sum(std::span(values));
      expect_failure_for_all(
          group, *ring, [&] { next->finish(); }, "the next sum");
    }
    // From here on no message of the failed group may arrive.
    if (me % 2 == 0) std::ranges::fill(values, -7.0f);
    expect_that_the_job_works();
    if (me % 2 == 0) {
      EXPECT_EQ(std::ranges::count(values, -7.0f), std::ssize(values));
    }
  }
}

TEST(Groups, ASumThatAnExceptionLeavesBehindIsNoLongerInItsMemory) {
  const RankGroup group = *session().job().split(0);
  const auto ring = make_mpi_communicator(group, kGroupChunkBytes);
  try {
    std::vector<float> values = exact_values(session().rank(), kManyValues);
    const auto sum = ring->start_sum(std::span(values));
    if (group.rank() == group.size() - 1) throw std::runtime_error("out of memory");
    ring->barrier();
    EXPECT_EQ(group.size(), 1);
  } catch (const std::exception& e) {
    ring->abort(e.what());
  }
  EXPECT_EQ(group.failed(), group.size() > 1 || group.rank() == group.size() - 1);
  expect_that_the_job_works();
}

TEST(Groups, ASumThroughHostMemoryFailsWithItsGroup) {
  const RankGroup group = *session().job().split(0);
  const auto ring = make_mpi_communicator(group, kGroupChunkBytes);
  cuda::HostDevice device{cuda::HostDeviceOptions{}};
  const auto sums = make_staged_communicator(device, *ring);
  auto* const vector = static_cast<float*>(sums->allocate(4000));
  expect_failure_for_all(
      group, *sums,
      [&] {
        const auto sum = sums->start_sum({vector, 1000});
        sum->finish();
      },
      "a sum through host memory");
  sums->poll();  // an aborted ring reports nothing
  sums->release(vector);
  expect_that_the_job_works();
}

TEST(Groups, TheWatchdogEndsTheRunOfItsGroupAndNotTheJob) {
  const RankGroup group = *session().job().split(session().rank() % 2);
  const auto ring = make_mpi_communicator(group, kGroupChunkBytes);
  const std::vector<int> ranks = ranks_of([](int r) { return r % 2; }, session().rank() % 2);
  {
    Watchdog watchdog(group, session().rank() % 2 == 0 ? 0.3 : 0);
    if (session().rank() % 2 == 1) {
      expect_right_sums(*ring, ranks);
    } else {
      std::string error = "no error";
      try {
        watchdog.enter(7, Phase::communication);
        for (;;) ring->poll();  // waits for a step that does not end
      } catch (const GroupFailed& e) {
        error = e.what();
        ring->abort(error);
      }
      EXPECT_NE(error.find("no step was finished for 0.3 s"), std::string::npos) << error;
    }
  }
  expect_that_the_job_works();
}

TEST(Groups, TheJobItselfHasNoFailuresOfItsOwn) {
  EXPECT_TRUE(session().job().ends_job());
  session().job().fail("nobody hears this");
  EXPECT_FALSE(session().job().failed());
  const auto ring = make_mpi_communicator(session().job(), kGroupChunkBytes);
  ring->abort("main() ends the job");
  // abort() also returns for a part of the job that ends with the job, although the part's other ranks do not call it.
  const std::optional<RankGroup> part = session().job().part(0);
  EXPECT_TRUE(part->ends_job());
  const auto over_part = make_mpi_communicator(*part, kGroupChunkBytes);
  if (session().rank() == 0) over_part->abort("main() ends the job");
  expect_right_sums(*over_part, ranks_of([](int) { return 0; }, 0));
  expect_right_sums(*ring, ranks_of([](int) { return 0; }, 0));
}

TEST(ClockOffsets, OneHostHasTheClockOfRankZero) {
  const std::vector<ClockOffset> offsets = clock_offsets(session().job());
  if (session().rank() != 0) {
    EXPECT_TRUE(offsets.empty());
    return;
  }
  ASSERT_EQ(offsets.size(), distinct_hosts(session().hosts()).size());
  EXPECT_EQ(offsets.front().seconds, 0);
}

TEST(ClockOffsets, HostsComeInTheOrderOfTheirFirstRanks) {
  EXPECT_EQ(distinct_hosts({"b", "a", "b", "c", "a"}), (std::vector<std::string>{"b", "a", "c"}));
}

}  // namespace
}  // namespace ringtrain
