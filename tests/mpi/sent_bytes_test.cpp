// Tests the count of the bytes that ranks give to each other, against what each operation must send.
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "cluster/communicator.h"
#include "cluster/links.h"
#include "mpi_tests.h"
#include "parallel/rank_status.h"
#include "summed_vector.h"

namespace ringtrain {
namespace {

// Returns the bytes that all ranks have sent in `call`. All ranks must call this function. The bytes of the sum that
// collects this result are not included.
template <class Call>
SentBytes sent_by_all(const Call& call) {
  const SentBytes before = sent_bytes();
  call();
  const SentBytes mine = sent_bytes() - before;
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  double values[] = {static_cast<double>(mine.by_message), static_cast<double>(mine.through_memory)};
  communicator->sum(std::span<double>(values));
  return {std::llround(values[0]), std::llround(values[1])};
}

constexpr std::int64_t kLength = 10007, kBytes = 4 * kLength;

TEST(SentBytesTest, ASumOfARingSendsAllPiecesButOneTwice) {
  const int others = session().size() - 1;
  for (const bool allocated : {false, true})
    for (const char* algorithm : {"ring", "halving", "mpi"}) {
      SCOPED_TRACE(cat(algorithm, place_name(allocated)));
      if (std::string(algorithm) == "mpi" && allocated) continue;  // MPI's own sums do not read values in place
      const auto communicator = make_mpi_communicator(session().job(), 4096, 0x7fffffff, {.algorithm = algorithm});
      SummedVector vector(*communicator, std::vector<float>(kLength, 1.0f), allocated);
      const SentBytes sent = sent_by_all([&] { communicator->sum(vector.span()); });
      const std::int64_t bytes = allocated ? sent.through_memory : sent.by_message;
      EXPECT_EQ(allocated ? sent.by_message : sent.through_memory, 0);
      // The bytes of MPI's own sums are counted as those of a ring, rounded down for each rank. Halving sends more for
      // small sums, because ranks then exchange all values.
      const bool is_rough = std::string(algorithm) != "ring";
      EXPECT_GE(bytes, 2 * others * kBytes - (is_rough ? 2 * session().size() : 0));
      EXPECT_LE(bytes, 2 * others * kBytes * (is_rough ? 2 : 1));
    }
}

TEST(SentBytesTest, SumsOnOneRankAndBroadcastsSendTheirValuesOnceForEachOtherRank) {
  const int others = session().size() - 1;
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  std::vector<float> values(kLength, 1.0f);
  EXPECT_EQ(sent_by_all([&] { communicator->start_root_sum(values, 0)->finish(); }).by_message, others * kBytes);
  EXPECT_EQ(sent_by_all([&] { communicator->start_broadcast(values, 0)->finish(); }).by_message, others * kBytes);
  EXPECT_EQ(sent_by_all([&] { communicator->broadcast_vector(values, 0); }).by_message, others * kBytes);
}

TEST(SentBytesTest, MessagesAndGatheredNumbersAreCountedWhereTheyAreSent) {
  if (session().size() == 1) GTEST_SKIP() << "one rank sends nothing";
  const int rank = session().rank();
  const auto mailbox = make_mailbox(session().job());
  std::vector<std::byte> bytes(123);
  const SentBytes letter = sent_by_all([&] {
    if (rank == 1) mailbox->send(0, 7, bytes);
    if (rank == 0) mailbox->receive(1, 7, bytes);
  });
  EXPECT_EQ(letter.by_message, 123);
  const auto links = make_links(session().job());
  const SentBytes link = sent_by_all([&] {
    if (rank == 1) links->send(bytes, 0, 7)->finish();
    if (rank == 0) links->receive(bytes, 1, 7)->finish();
  });
  EXPECT_EQ(link.by_message, 123);
  EXPECT_EQ(link.through_memory, 0);
}

TEST(SentBytesTest, EveryRanksBytesArriveWhole) {
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  const std::int64_t large = (std::int64_t{1} << 45) + 12345 * session().rank() + 1;
  const std::vector<SentBytes> all = gather_to_0(*communicator, SentBytes{large, large + 7});
  ASSERT_EQ(all.size(), session().rank() == 0 ? static_cast<std::size_t>(session().size()) : 0);
  for (std::size_t r = 0; r < all.size(); ++r) {
    EXPECT_EQ(all[r].by_message, (std::int64_t{1} << 45) + 12345 * static_cast<std::int64_t>(r) + 1);
    EXPECT_EQ(all[r].through_memory, all[r].by_message + 7);
  }
}

TEST(SentBytesTest, EveryRanksTimesArriveInTheirPlaces) {
  const auto communicator = make_mpi_communicator(session().job(), 4096);
  const double rank = session().rank();
  const StepTimes mine{.input = rank + 1,
                       .forward = 1.0 / 3,
                       .backward = 3,
                       .bubble = 4,
                       .boundary = 5,
                       .communication = 6,
                       .update = 7,
                       .server = 8,
                       .workers = 9};
  const std::vector<StepTimes> all = gather_to_0(*communicator, mine);
  ASSERT_EQ(all.size(), session().rank() == 0 ? static_cast<std::size_t>(session().size()) : 0);
  for (std::size_t r = 0; r < all.size(); ++r) {
    EXPECT_EQ(all[r].input, static_cast<double>(r) + 1);
    EXPECT_EQ(all[r].forward, 1.0 / 3) << "all digits";
    EXPECT_EQ(all[r].bubble, 4);
    EXPECT_EQ(all[r].server, 8);
    EXPECT_EQ(all[r].workers, 9);
  }
}

}  // namespace
}  // namespace ringtrain
