// Rings of some of the ranks, and the clocks of hosts.
#include "cluster/clock_offsets.h"
#include "mpi_tests.h"

namespace ringtrain {
namespace {

TEST(Groups, EachSumsOverItsOwnRanksAndTheOthersStayOut) {
  const int me = session().rank(), size = session().size();
  const int group = me % 3 == 2 ? -1 : me % 3;
  const std::unique_ptr<Communicator> ring = make_group_communicator(1 << 16, group);
  ASSERT_EQ(ring == nullptr, group < 0);
  if (!ring) return;
  std::vector<float> values = exact_values(me, 1000), sums(1000, 0);
  int members = 0;
  for (int r = group; r < size; r += 3, ++members)
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += exact_value(r, i);
  EXPECT_EQ(ring->size(), members);
  EXPECT_EQ(ring->rank(), me / 3) << "in the order of the ranks";
  ring->sum(std::span<float>(values));
  EXPECT_EQ(values, sums);
}

TEST(ClockOffsets, OneHostHasTheClockOfRankZero) {
  const std::vector<ClockOffset> offsets = clock_offsets(session());
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
