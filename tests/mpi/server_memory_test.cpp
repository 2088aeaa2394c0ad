// Tests that runs whose parameter servers have ranks of their own take the memory that was planned.
#include "run/memory.h"
#include "run/split.h"
#include "train/steps.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class ServerMemory : public TrainerTest {};

TEST_F(ServerMemory, IsWhatWasPlanned) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has no server of its own";
  const Settings async = {"parallel.kind=server", "parallel.mode=async"};
  const Settings backup = {"parallel.kind=server", "parallel.backup_workers=1"};
  struct Way {
    Settings keys;
    int least_ranks;
  };
  for (const auto& [keys, least_ranks] : {Way{async, 2}, Way{async + Settings{"parallel.servers=2"}, 3}, Way{backup, 3},
                                          Way{backup + Settings{"parallel.servers=2"}, 4}}) {
    if (session().size() < least_ranks) continue;
    SCOPED_TRACE(keys.back());
    const Experiment e = experiment("names", keys);
    const DatasetIndex index = read_dataset_index(e.data.train);
    const auto host = make_mpi_communicator(session().job(), 1 << 12);
    const auto backend = make_host_backend(e, 1, *host, nullptr);
    const RunPlan plan = make_run_plan(e, index, nullptr, host->size(), *backend);
    Watchdog watchdog(session().job(), 0);
    Loader loader(make_dataset(plan.train), train_loader_of(plan, host->rank()));
    const auto servers = make_server_ranks(plan, session().job());
    Trainer trainer(plan, *backend, *host, watchdog, loader, servers->update_share());
    RunProgress progress;
    progress.position = plan.course.settled(progress.position);
    load_trainer(nullptr, trainer, plan, progress, *host);
    const auto steps = make_steps({plan, *backend, trainer, loader, *host, watchdog, servers.get()},
                                  [](const Position&, const Position&) { return true; });
    std::int64_t planned = 0;
    for (const MemoryItem& item : rank_memory(plan, *backend, host->rank()))
      if (!item.what.starts_with("loader") && !item.what.starts_with("data set") &&
          !item.what.starts_with("checkpoint"))
        planned += item.bytes;
    EXPECT_EQ(backend->allocated_bytes(), planned);
    EXPECT_TRUE(steps->step({}).met);
    EXPECT_EQ(backend->allocated_bytes(), planned);
  }
}

}  // namespace
}  // namespace ringtrain
