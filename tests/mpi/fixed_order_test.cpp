// Tests communication.order: fixed. On CPUs and on (host) devices, every number of ranks must give the bits of one
// rank.
#include "run/fixed_order.h"

#include "run/memory.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class FixedOrder : public TrainerTest {
 protected:
  // A batch is eight passes of three samples each.
  const Settings fixed = {"communication.order=fixed", "run.threads=1", "batch.worker=3", "batch.micro=3"};
  struct Machine {
    bool on_device;
    std::string library;
  };
  const std::vector<Machine> machines = {{false, "auto"}, {true, "mpi"}, {true, "nccl"}};
  static Settings of(const Machine& machine) { return {cat("communication.library=", machine.library)}; }
};

void expect_same_bits(const std::vector<StepReport>& reports, const std::vector<StepReport>& expected) {
  ASSERT_EQ(reports.size(), expected.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].loss, expected[i].loss) << i;
    EXPECT_EQ(reports[i].gradient_norm, expected[i].gradient_norm) << i;
    EXPECT_EQ(reports[i].gain, expected[i].gain) << i;
    ASSERT_TRUE(reports[i].noise && expected[i].noise);
    EXPECT_EQ(reports[i].noise->estimate.trace, expected[i].noise->estimate.trace) << i;
    EXPECT_EQ(reports[i].noise->groups, expected[i].noise->groups) << i;
  }
}

TEST_F(FixedOrder, AllRanksHaveTheBitsOfOne) {
  if (!std::has_single_bit(static_cast<unsigned>(session().size()))) GTEST_SKIP() << "the ranks are no power of two";
  const Settings adascale = {"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=6",
                             "noise.small_batch=6", "learning_rate.base=0.1"};
  const Settings two_passes = {"noise.small_batch=6", "noise.groups=tensor", "communication.bucket_mib=0.001"};
  for (const Machine& machine : machines)
    for (const auto& [data, settings] : {std::pair<std::string, Settings>{"names", two_passes},
                                         {"names", {"data.blanks=masked", "communication.bucket_mib=0.001"}},
                                         {"text", streams},
                                         {"names", adascale}}) {
      SCOPED_TRACE(cat(data, " ", settings.front(), " ", machine.library, machine.on_device ? " on a device" : ""));
      const Experiment e = experiment(data, fixed + settings + of(machine));
      TrainingRank alone(e, machine.on_device, nullptr, true), together(e, machine.on_device);
      expect_same_bits(together.steps(6), alone.steps(6));
      EXPECT_EQ(together.weights(), alone.weights());
    }
}

TEST_F(FixedOrder, IsTheSumOfAnyOrderWithinRounding) {
  if (!std::has_single_bit(static_cast<unsigned>(session().size()))) GTEST_SKIP() << "the ranks are no power of two";
  for (const Machine& machine : machines) {
    TrainingRank run(experiment("names", fixed + of(machine)), machine.on_device);
    TrainingRank any(experiment("names", Settings{"batch.micro=3", "batch.worker=3"} + of(machine)), machine.on_device);
    const StepReport report = run.trainer->step({}), expected = any.trainer->step({});
    EXPECT_NEAR(report.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-6 * expected.gradient_norm);
    std::vector<float> gradients(static_cast<std::size_t>(run.plan.parameters.size())), sums = gradients;
    run.backend->copy_to_host(run.trainer->gradients(), 0, gradients);
    any.backend->copy_to_host(any.trainer->gradients(), 0, sums);
    for (const Parameter& p : run.plan.parameters.all()) {
      double difference = 0, norm = 0;
      for (std::int64_t i = p.offset; i < p.offset + p.count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        difference += std::pow(gradients[at] - sums[at], 2);
        norm += std::pow(sums[at], 2);
      }
      EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << p.name;
    }
  }
}

TEST_F(FixedOrder, TakesTheMemoryThatIsPlanned) {
  if (!std::has_single_bit(static_cast<unsigned>(session().size()))) GTEST_SKIP() << "the ranks are no power of two";
  for (const Machine& machine : machines) {
    const auto bytes_of = [&](const Settings& settings) {
      TrainingRank run(experiment("names", settings + of(machine)), machine.on_device);
      run.steps(2);
      std::int64_t planned = 0;
      for (const MemoryItem& item : rank_memory(run.plan, *run.backend))
        if (item.what != "gradients before a small batch, for the noise scale") planned += item.bytes;
      return std::pair(run.backend->allocated_bytes(), planned);
    };
    const Settings any = {"batch.worker=3", "batch.micro=3", "run.threads=1", "noise.every_steps=0"};
    const auto without = bytes_of(any), with = bytes_of(fixed + Settings{"noise.every_steps=0"});
    EXPECT_EQ(with.first - without.first, with.second - without.second);
    EXPECT_GT(with.first, without.first);  // on up to 4 ranks, each rank has at least two passes
  }
}

}  // namespace
}  // namespace ringtrain
