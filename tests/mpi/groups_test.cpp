// Tests groups of ranks. Each group works for itself.
#include <functional>

#include "cluster/rank_group.h"
#include "mpi_tests.h"

namespace ringtrain {
namespace {

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

TEST(Groups, EachSumsOverItsOwnRanksAndTheOthersStayOut) {
  const auto colour_of = [](int rank) { return rank % 3 == 2 ? -1 : rank % 3; };
  const int me = session().rank();
  const std::optional<RankGroup> group = session().job().split(colour_of(me));
  ASSERT_EQ(group.has_value(), colour_of(me) >= 0);
  if (!group) return;
  EXPECT_EQ(group->rank(), me / 3) << "in the order of the ranks";
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
