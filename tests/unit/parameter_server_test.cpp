// Tests parameter servers and workers, which are threads that communicate through a network that delays and reorders
// messages. They run plain SGD on weights that show which updates they contain. The results are compared with a
// sequential program in double.
#include "parallel/parameter_server.h"

#include <gtest/gtest.h>

#include <set>

#include "simulated_mailboxes.h"

namespace ringtrain {
namespace {

constexpr std::int64_t trained_elements = 7, all_elements = 9;  // the last two are statistics

// Returns the number of targets of a worker's gradients. Any set of workers has a sum of its own.
std::int64_t targets_of(std::int64_t worker) {
  return std::int64_t{1} << worker;
}

struct ServerSetting {
  int servers = 1, workers = 3, backups = -1;  // synchronous with backups >= 0
  std::int64_t max_staleness = -1, end = 40, meets_every = 13;
  unsigned seed = 1;
  int slow = -1;  // number of a worker, or -1
  std::vector<Arrival> replay = {};
};

struct JobOutcome {
  std::vector<Arrival> arrivals;
  std::vector<std::int64_t> gradients, dropped, targets;  // for each step: used gradients, late ones, targets
  std::vector<double> weights;
  std::vector<std::string> failures;
};

// Returns the gradient of an update for an element of this weight. Any function that mixes all three would do.
double gradient(double weight, std::int64_t update, std::int64_t element) {
  return 0.3 * weight + static_cast<double>((update * 7 + element * 3) % 11) - 5;
}
// Returns a number that worker `worker` adds to its gradient in jobs with backup workers. Gradients of the same weights
// then differ from worker to worker.
double part_of_worker(std::int64_t worker) {
  return 1.5 * static_cast<double>(worker * worker);
}

class Job {
 public:
  explicit Job(const ServerSetting& setting) : s_(setting), network_(setting.servers + setting.workers, setting.seed) {}

  JobOutcome run() {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < s_.servers + s_.workers; ++rank)
      ranks.emplace_back([this, rank] {
        try {
          ServerRanks servers(network_.mailbox(rank), s_.servers, trained_elements, all_elements);
          rank < s_.servers ? serve(servers, rank) : work(servers, rank);
        } catch (const Aborted&) {
        } catch (const std::exception& error) {
          network_.abort();
          const std::lock_guard lock(mutex_);
          outcome_.failures.push_back(error.what());
        }
      });
    for (std::thread& rank : ranks) rank.join();
    outcome_.weights.assign(weights_.begin(), weights_.end());
    return outcome_;
  }

 private:
  bool meets(std::int64_t step) const { return step % s_.meets_every == 0 || step == s_.end; }

  std::unique_ptr<UpdateOrder> order() {
    const MeetsAfter rule = [this](std::int64_t step) { return meets(step); };
    if (s_.backups >= 0) return make_backup_order(s_.workers, 0, s_.backups, rule);
    if (!s_.replay.empty()) return make_replayed_order("replay", s_.workers, 0, s_.replay, rule);
    return make_arrival_order(s_.workers, 0, s_.max_staleness, rule);
  }

  void serve(ServerRanks& ranks, int rank) {
    std::vector<float> weights(all_elements, 1.0f), gradients(all_elements),
        received(s_.backups >= 0 ? all_elements : 0);
    std::int64_t step = 0;
    const auto apply = [&](const TakenGradients& taken) {
      std::array<double, 1> check = {1.0};
      ranks.sum(check);
      EXPECT_EQ(check[0], s_.servers);
      const ElementRange own = ranks.range_of(rank);
      for (std::int64_t i = 0; i < all_elements; ++i)
        if (i >= trained_elements || (i >= own.begin && i < own.end)) {
          const auto at = static_cast<std::size_t>(i);
          weights[at] -= 0.01f * gradients[at];
        }
      ++step;
      if (rank != 0) return;
      outcome_.arrivals.push_back({step, taken.last.update, taken.last.worker, taken.last.version});
      outcome_.gradients.push_back(taken.count);
      outcome_.dropped.push_back(taken.dropped);
      outcome_.targets.push_back(taken.sums.losses.targets);
    };
    ParameterServer server(ranks, weights, gradients, received, rank == 0 ? order() : nullptr, apply,
                           [] { return false; });
    while (step < s_.end) server.step({});
    const std::lock_guard lock(mutex_);
    weights_.resize(all_elements);
    for (const ElementRange& range : ranks.pulled_from(rank))
      for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i)
        weights_[i] = weights[i];
  }

  void work(ServerRanks& ranks, int rank) {
    std::vector<float> weights(all_elements), gradients(all_elements);
    ServedWorker worker(ranks, weights, gradients);
    const std::int64_t number = rank - s_.servers;
    std::mt19937 random(s_.seed * 100 + static_cast<unsigned>(rank));
    for (std::int64_t met = 0; met < s_.end;) {
      ServerOrder order = worker.ask(false);
      while (order.action.kind == ServerAction::Kind::grant) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200 + (number == s_.slow ? 1500 : 0)));
        for (std::size_t i = 0; i < weights.size(); ++i)
          gradients[i] = static_cast<float>(
              gradient(static_cast<double>(weights[i]), order.action.update, static_cast<std::int64_t>(i)) +
              (s_.backups >= 0 ? part_of_worker(number) : 0));
        order = worker.deliver({.losses = {.loss = 1, .targets = targets_of(number)}, .times = {}}, false);
      }
      EXPECT_TRUE(meets(order.action.update));
      met = order.action.update;
    }
  }

  const ServerSetting s_;
  SimulatedNetwork network_;
  std::mutex mutex_;
  JobOutcome outcome_;
  std::vector<float> weights_;
};

void expect_each_update_once(const JobOutcome& outcome, const ServerSetting& s) {
  EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.front();
  ASSERT_EQ(std::ssize(outcome.arrivals), s.end);
  std::set<std::int64_t> seen;
  for (const Arrival& a : outcome.arrivals) {
    EXPECT_TRUE(seen.insert(a.update).second) << a.update;
    if (a.step % s.meets_every == 0) {
      EXPECT_EQ(*seen.rbegin(), a.step - 1) << "no prefix at a meeting";
    }
  }
}

// Goes through each worker's steps in order. A worker that pulls version v must have all updates that the bound asks
// for.
void expect_bound(const JobOutcome& outcome, const ServerSetting& s) {
  std::vector<std::vector<Arrival>> steps(static_cast<std::size_t>(s.workers));
  for (const Arrival& a : outcome.arrivals) {
    EXPECT_LE(a.staleness(), (s.workers - 1) * (2 * s.max_staleness + 1));
    steps[static_cast<std::size_t>(a.worker)].push_back(a);
  }
  for (const auto& mine : steps)
    for (std::size_t k = 0; k < mine.size(); ++k)  // step k + 1 needs k - s finished steps of all
      for (const auto& others : steps)
        if (const auto needed = static_cast<std::int64_t>(k) - s.max_staleness; needed > 0) {
          ASSERT_GE(std::ssize(others), needed);
          EXPECT_LE(others[static_cast<std::size_t>(needed - 1)].step, mine[k].version);
        }
}

std::vector<double> sequential(const std::vector<Arrival>& arrivals) {
  std::vector<std::vector<double>> versions = {std::vector<double>(all_elements, 1.0)};
  for (const Arrival& a : arrivals) {
    const std::vector<double>& pulled = versions[static_cast<std::size_t>(a.version)];
    std::vector<double> next = versions.back();
    for (std::size_t i = 0; i < next.size(); ++i)
      next[i] -= 0.01 * gradient(pulled[i], a.update, static_cast<std::int64_t>(i));
    versions.push_back(next);
  }
  return versions.back();
}

TEST(ParameterServer, TwoHundredOrdersEndKeepTheirBoundAndAreASequentialProgram) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const ServerSetting s{.servers = static_cast<int>(seed % 3) + 1,
                          .workers = static_cast<int>(seed % 4) + 1,
                          .max_staleness = static_cast<std::int64_t>(seed % 5) - 1,
                          .end = 30,
                          .seed = seed,
                          .slow = static_cast<int>(std::mt19937(seed)() % (seed % 4 + 2)) - 1};  // any worker, or none
    SCOPED_TRACE(seed);
    const JobOutcome outcome = Job(s).run();
    expect_each_update_once(outcome, s);
    if (HasFailure()) return;
    if (s.max_staleness >= 0) expect_bound(outcome, s);
    const std::vector<double> expected = sequential(outcome.arrivals);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(outcome.weights[i], expected[i], 2e-6);
    if (HasFailure()) return;
  }
}

TEST(ParameterServer, AReplayHasTheSameOrderAndBits) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    ServerSetting s{.servers = 2, .workers = 4, .max_staleness = seed % 2 == 0 ? 2 : -1, .seed = seed, .slow = 1};
    const JobOutcome first = Job(s).run();
    s.replay = first.arrivals;
    s.seed += 1000;
    s.slow = 3;
    const JobOutcome again = Job(s).run();
    EXPECT_EQ(again.arrivals, first.arrivals);
    EXPECT_EQ(again.weights, first.weights);
  }
}

// A step applies the mean over all targets of the gradients that it took. The number of targets shows which gradients
// these were.
TEST(ParameterServer, BackupWorkersStandInForASlowOne) {
  std::int64_t dropped = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const ServerSetting s{.servers = static_cast<int>(seed % 2) + 1,
                          .workers = 4,
                          .backups = 1,
                          .seed = seed,
                          .slow = static_cast<int>(seed / 2 % 4)};
    const JobOutcome outcome = Job(s).run();
    EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.front();
    ASSERT_EQ(std::ssize(outcome.arrivals), s.end);
    for (std::size_t i = 0; i < outcome.gradients.size(); ++i) {
      EXPECT_EQ(outcome.gradients[i], 3);
      EXPECT_EQ(outcome.arrivals[i].version, static_cast<std::int64_t>(i));
      dropped += outcome.dropped[i];
    }
    std::vector<double> expected(all_elements, 1.0);
    for (std::int64_t step = 0; step < s.end; ++step) {
      const std::int64_t targets = outcome.targets[static_cast<std::size_t>(step)];
      double of_workers = 0;
      for (std::int64_t worker = 0; worker < s.workers; ++worker)
        if ((targets & targets_of(worker)) != 0)
          of_workers += static_cast<double>(targets_of(worker)) * part_of_worker(worker);
      for (std::int64_t i = 0; i < all_elements; ++i) {
        double& weight = expected[static_cast<std::size_t>(i)];
        weight -= 0.01 * (gradient(weight, step, i) + of_workers / static_cast<double>(targets));
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(outcome.weights[i], expected[i], 1e-5);
  }
  EXPECT_GT(dropped, 0);
}

// Workers 0 and 1 deliver whenever nothing else can be done. Worker 2 delivers every tenth time only.
TEST(UpdateOrder, ASlowWorkerTakesFewerUpdatesAndHoldsUpNobody) {
  const auto order = make_arrival_order(3, 0, -1, [](std::int64_t step) { return step == 60; });
  for (int worker = 0; worker < 3; ++worker) order->asks(worker);
  std::vector<int> updates(3);
  std::vector<bool> busy(3);
  for (int wait = 1; wait < 200; ++wait) {
    while (const std::optional<ServerAction> action = order->next()) {
      const auto worker = static_cast<std::size_t>(std::max<std::int64_t>(0, action->worker));
      if (action->kind == ServerAction::Kind::grant) busy[worker] = true;
      if (action->kind == ServerAction::Kind::take) ++updates[worker];
      if (action->kind == ServerAction::Kind::meet) {
        EXPECT_EQ(updates[0] + updates[1] + updates[2], 60);
        EXPECT_LT(5 * updates[2], updates[0]);
        EXPECT_LE(wait, 42);
        return;
      }
    }
    for (int worker = 0; worker < 3; ++worker)
      if (busy[static_cast<std::size_t>(worker)] && (worker < 2 || wait % 10 == 0)) {
        busy[static_cast<std::size_t>(worker)] = false;
        order->delivers(worker);
      }
  }
  ADD_FAILURE() << "the ranks never meet";
}

TEST(UpdateOrder, RefusesAnOrderThatNobodyCanHaveHad) {
  const auto meets = [](std::int64_t) { return false; };
  const auto refuses = [&](const std::vector<Arrival>& arrivals, const std::string& what) {
    try {
      make_replayed_order("order.csv", 2, 0, arrivals, meets);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("order.csv: step "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refuses({{2, 0, 0, 0}}, "expected step 1");
  refuses({{1, 0, 2, 0}}, "worker 2");
  refuses({{1, 0, 0, 0}, {2, 0, 1, 0}}, "samples of update 0");
  refuses({{1, 0, 0, 0}, {2, 1, 0, 0}}, "version 0");
  refuses({{1, 0, 0, 1}}, "version 1");
  refuses({{1, 0, 0, 0}, {2, 4, 1, 0}}, "update 4 from version 0, expected an update below 4");
  refuses({{1, INT64_MAX, 0, 0}}, "expected an update below 4");  // counting to this update step by step would not end
}

// A worker that still computes would miss a meeting.
TEST(UpdateOrder, MeetsOnlyWhenAllWorkersWait) {
  using Kind = ServerAction::Kind;
  const auto meets = [](std::int64_t step) { return step == 1; };
  const auto kinds = [](UpdateOrder& order) {
    std::vector<Kind> all;
    while (const std::optional<ServerAction> action = order.next()) all.push_back(action->kind);
    return all;
  };
  // Worker 2 is late: it still has a gradient to compute, or it has not asked yet.
  const auto backups = make_backup_order(3, 0, 1, meets);
  for (const int worker : {0, 1, 2}) backups->asks(worker);
  EXPECT_EQ(kinds(*backups), (std::vector{Kind::grant, Kind::grant, Kind::grant}));
  for (const int worker : {0, 1}) backups->delivers(worker);
  EXPECT_EQ(kinds(*backups), (std::vector{Kind::take, Kind::take, Kind::apply}));
  backups->delivers(2);
  EXPECT_EQ(backups->next()->kind, Kind::drop);
  EXPECT_EQ(backups->next(), (ServerAction{.kind = Kind::meet, .update = 1, .dropped = 1}));
  EXPECT_EQ(backups->next(), std::nullopt) << "nobody has asked since";

  const std::vector<Arrival> arrivals = {{1, 0, 0, 0}};
  std::unique_ptr<UpdateOrder> others[] = {make_arrival_order(3, 0, -1, meets),
                                           make_replayed_order("order.csv", 3, 0, arrivals, meets)};
  for (const auto& order : others) {
    for (const int worker : {0, 1}) order->asks(worker);
    EXPECT_EQ(kinds(*order), (std::vector{Kind::grant}));
    order->delivers(0);
    EXPECT_EQ(kinds(*order), (std::vector{Kind::take, Kind::apply}));
    order->asks(2);
    EXPECT_EQ(order->next()->kind, Kind::meet);
  }
}

// A signal arrives when all granted work has been applied. One more update follows, and then the meeting.
TEST(UpdateOrder, MeetsSoonAfterAtLeastOneUpdate) {
  const auto order = make_arrival_order(1, 5, -1, [](std::int64_t) { return false; });
  using Kind = ServerAction::Kind;
  order->asks(0);
  order->meet_soon();
  EXPECT_EQ(order->next()->kind, Kind::grant);
  EXPECT_EQ(order->next(), std::nullopt);
  order->delivers(0);
  EXPECT_EQ(order->next()->kind, Kind::take);
  const ServerAction applied = *order->next();
  EXPECT_EQ(applied.kind, Kind::apply);
  EXPECT_TRUE(applied.meets);
  const ServerAction meeting = *order->next();
  EXPECT_EQ(meeting.kind, Kind::meet);
  EXPECT_EQ(meeting.update, 6);
}

}  // namespace
}  // namespace ringtrain
