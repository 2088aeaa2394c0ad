// Tests collectives that go on after deaths. Ranks are threads whose network delays messages and kills ranks at chosen
// moments.
#include "cluster/surviving_communicator.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <set>

#include "simulated_mailboxes.h"

namespace ringtrain {
namespace {

constexpr int ranks = 6, rounds = 8;

// Holds what a rank had after each collective operation.
struct Seen {
  std::vector<std::vector<float>> values;
  std::vector<std::set<int>> dead;
};

struct Survival {
  std::map<int, Seen> living;
  std::map<int, std::string> errors;
  std::set<int> dead;
};

// Stands for a job that goes on as long as rank 0 and one of the ranks 1 and 3 are alive. Throws if the job must end.
void check_deaths(const std::vector<int>& dead) {
  const std::set<int> all(dead.begin(), dead.end());
  if (all.contains(0)) throw Error("rank 0 has died");
  if (all.contains(1) && all.contains(3)) throw Error("ranks 1 and 3 have died");
}

std::vector<float> from_rank_2(Communicator& communicator, int round) {
  std::vector<float> values(3);
  if (communicator.rank() == 2) values = {1, 2, static_cast<float>(round)};
  try {
    communicator.broadcast_vector(values, 2);
  } catch (const RootDied&) {
    values = {-1};
  }
  return values;
}

Seen run_collectives(Communicator& communicator, const Mailbox& mailbox) {
  Seen seen;
  const auto note = [&](const std::vector<float>& values) {
    seen.values.push_back(values);
    seen.dead.emplace_back(mailbox.dead().begin(), mailbox.dead().end());
  };
  const int rank = communicator.rank();
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> powers = {static_cast<float>(1 << rank), 1};  // shows whose values the sum has
    communicator.sum(std::span(powers));
    note(powers);
    note(from_rank_2(communicator, round));
    std::vector<double> counter = {1};
    communicator.sum(std::span(counter));
    note({static_cast<float>(counter[0])});
    const std::vector<float> mine = {static_cast<float>(rank + 1), static_cast<float>(round)};
    std::vector<float> all(rank == 0 ? 2 * ranks : 0), back(2);
    communicator.gather(mine, all, 0);
    communicator.scatter(all, back, 0);
    EXPECT_EQ(back, mine) << "rank " << rank;
    communicator.barrier();
    note({});
  }
  return seen;
}

Survival run(const std::map<int, int>& kills, unsigned seed) {
  SimulatedNetwork network(ranks, seed);
  for (const auto& [rank, call] : kills) network.kill(rank, call);
  Survival outcome;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::unique_ptr<Mailbox> mailbox = network.mailbox(rank);
        const Mailbox& seen_by = *mailbox;
        const std::unique_ptr<Communicator> communicator =
            make_surviving_communicator(std::move(mailbox), check_deaths);
        Seen seen = run_collectives(*communicator, seen_by);
        const std::lock_guard lock(mutex);
        outcome.living[rank] = std::move(seen);
      } catch (const Killed&) {
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        outcome.errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  outcome.dead = network.dead();
  return outcome;
}

TEST(SurvivingCommunicator, WithoutDeathsSumsAndBroadcastsHaveAllRanks) {
  const Survival outcome = run({}, 1);
  ASSERT_EQ(outcome.living.size(), std::size_t{ranks});
  for (const auto& [rank, seen] : outcome.living)
    for (int round = 0; round < rounds; ++round) {
      const auto at = static_cast<std::size_t>(4 * round);
      EXPECT_EQ(seen.values[at], (std::vector<float>{63, ranks}));
      EXPECT_EQ(seen.values[at + 1], (std::vector<float>{1, 2, static_cast<float>(round)}));
      EXPECT_EQ(seen.values[at + 2], (std::vector<float>{ranks}));
    }
}

// Two ranks die, often in the same collective.
TEST(SurvivingCommunicator, AllLivingRanksGetTheSameResultsAndKnowTheSameDeaths) {
  std::set<std::size_t> numbers_of_dead;
  bool root_died = false;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int first = 1 + static_cast<int>(random() % 5), call = 1 + static_cast<int>(random() % 60);
    int second = first;
    while (second == first || first + second == 4) second = 1 + static_cast<int>(random() % 5);  // not 1 and 3
    const Survival outcome = run({{first, call}, {second, call + static_cast<int>(random() % 4)}}, seed);
    ASSERT_TRUE(outcome.errors.empty()) << outcome.errors.begin()->second;
    numbers_of_dead.insert(outcome.dead.size());
    ASSERT_EQ(outcome.living.size() + outcome.dead.size(), std::size_t{ranks});
    const Seen& of_root = outcome.living.at(0);
    for (const auto& [rank, seen] : outcome.living) {
      ASSERT_EQ(seen.values, of_root.values) << "rank " << rank;
      for (std::size_t i = 1; i < seen.dead.size(); ++i)  // rank 0 may have learned of more deaths since
        ASSERT_TRUE(std::ranges::includes(seen.dead[i], of_root.dead[i - 1])) << "rank " << rank;
      ASSERT_EQ(seen.dead.back(), outcome.dead) << "rank " << rank;
    }
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto whose = static_cast<int>(of_root.values[4 * round][0]);
      for (int rank = 0; rank < ranks; ++rank)
        ASSERT_TRUE(outcome.dead.contains(rank) || (whose >> rank & 1) != 0) << "rank " << rank;
      ASSERT_EQ(std::popcount(static_cast<unsigned>(whose)), static_cast<int>(of_root.values[4 * round][1]));
      root_died |= of_root.values[4 * round + 1].size() == 1;
    }
  }
  EXPECT_TRUE(numbers_of_dead.contains(2));
  EXPECT_TRUE(root_died);
}

TEST(SurvivingCommunicator, AllRanksThrowTheSameErrorIfTheJobCannotGoOn) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    const Survival outcome = run({{1, 20}, {3, 20 + static_cast<int>(seed) % 5}}, seed);
    ASSERT_EQ(outcome.errors.size(), 4u);
    for (const auto& [rank, error] : outcome.errors) EXPECT_EQ(error, "ranks 1 and 3 have died");
    EXPECT_TRUE(outcome.living.empty());
  }
}

TEST(SurvivingCommunicator, NoRankWaitsForADeadRank0) {
  for (int call = 1; call <= 30; ++call) {
    const Survival outcome = run({{0, call}}, static_cast<unsigned>(call));
    ASSERT_EQ(outcome.errors.size(), 5u) << call;
    for (const auto& [rank, error] : outcome.errors) EXPECT_EQ(error, "rank 0 has died");
  }
}

}  // namespace
}  // namespace ringtrain
