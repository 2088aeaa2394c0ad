// Tests the gradient noise scale that the trainer measures, on any number of ranks, on the CPU and on (host) devices.
#include "run/memory.h"
#include "run/plan_text.h"
#include "run/split.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

class NoiseOfARun : public TrainerTest {};

// The tests use SGD, because Adam's first steps divide by tiny numbers and would enlarge rounding errors.
const Settings sgd = {"optimizer.kind=sgd", "optimizer.clip_norm=0", "learning_rate.base=0.1"};

void expect_near(const NoiseEstimate& a, const NoiseEstimate& b, double tolerance) {
  EXPECT_NEAR(a.trace, b.trace, tolerance * std::abs(b.trace));
  // The squared norm of the gradient is a difference of two norms, so its error is a share of those norms.
  EXPECT_NEAR(a.gradient, b.gradient, tolerance * (std::abs(b.gradient) + std::abs(b.trace) / 24));
}

// Estimates tr(Sigma) by its definition, which is b / (n - 1) x the sum of |G_b - G_B|^2, from gradients that are
// computed one by one. `of` selects a range of elements. An empty `of` selects all of them.
NoiseEstimate from_gradients_apart(const Experiment& e, const std::vector<float>& weights, ElementRange of = {}) {
  const auto backend = make_cpu_backend(1);
  const RunPlan plan = make_run_plan(e, read_dataset_index(e.data.train), nullptr, 1, *backend);
  Loader loader(make_dataset(plan.train), for_rank(plan.train_loader, 0));
  loader.seek(0, 0);
  const auto program =
      backend->compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training, plan.norm_group);
  program->allocate();
  const auto w = backend->make_vector(plan.parameters.size()), g = backend->make_vector(plan.parameters.size());
  backend->copy_from_host(weights, *w, 0);
  program->set_weights(*w);
  const auto n = static_cast<std::size_t>(plan.batch.accumulation);
  const auto elements = static_cast<std::size_t>(plan.parameters.trained());
  std::vector<std::vector<double>> gradients(n, std::vector<double>(elements));
  std::vector<double> mean(elements, 0.0);
  double targets = 0;
  for (auto& gradient : gradients) {
    const MicroBatch& batch = loader.next();
    if (batch.micro_step == 0)
      targets = static_cast<double>(plan.train_loader.mask_blanks ? batch.step_targets
                                                                  : plan.batch.global * plan.graph.sequence());
    PassContext context;
    context.gradient_scale = 1;
    program->run({batch.inputs.data(), batch.targets.data()}, context);
    program->backward(*g, false, {});
    for (std::size_t i = 0; i < elements; ++i) {
      gradient[i] = static_cast<double>(n) * static_cast<double>(g->data()[i]) / targets;
      mean[i] += gradient[i] / static_cast<double>(n);
    }
  }
  double scatter = 0, squared = 0;
  const auto begin = static_cast<std::size_t>(of.begin);
  for (std::size_t i = begin; i < (of.end > 0 ? static_cast<std::size_t>(of.end) : elements); ++i) {
    squared += mean[i] * mean[i];
    for (const auto& gradient : gradients) scatter += (gradient[i] - mean[i]) * (gradient[i] - mean[i]);
  }
  const double trace = static_cast<double>(plan.batch.micro_batch) * scatter / static_cast<double>(n - 1);
  return {trace, squared - trace / static_cast<double>(plan.batch.global)};
}

TEST_F(NoiseOfARun, IsThatOfTheSmallBatchesGradients) {
  for (const char* blanks : {"counted", "masked"})
    for (const bool on_device : {false, true}) {
      const Experiment e =
          experiment("names", sgd + Settings{"noise.small_batch=2", "model.dropout=0", cat("data.blanks=", blanks)});
      TrainingRank run(e, on_device);
      const NoiseEstimate expected = from_gradients_apart(e, run.weights());
      const StepReport report = run.trainer->step({});
      ASSERT_TRUE(report.noise.has_value());
      expect_near(report.noise->estimate, expected, 1e-4);
      EXPECT_DOUBLE_EQ(report.noise->scale.value, report.noise->estimate.trace / report.noise->estimate.gradient);
      EXPECT_LE(report.noise->targets_per_sample, static_cast<double>(run.plan.graph.sequence()));
      EXPECT_EQ(report.noise->targets_per_sample < static_cast<double>(run.plan.graph.sequence()),
                std::string(blanks) == "masked");
    }
}

TEST_F(NoiseOfARun, IsTheSameOnAnyNumberOfRanksWhereTheSmallBatchIsStated) {
  const Experiment e = experiment("names", sgd + Settings{"noise.small_batch=2"});
  for (const bool on_device : {false, true}) {
    TrainingRank alone(e, on_device, nullptr, true), together(e, on_device);
    for (int step = 0; step < 6; ++step) {
      const StepReport one = alone.trainer->step({}), all = together.trainer->step({});
      ASSERT_TRUE(one.noise && all.noise);
      expect_near(all.noise->estimate, one.noise->estimate, 1e-4);
    }
    expect_near(together.trainer->noise().scale().mean(), alone.trainer->noise().scale().mean(), 1e-4);
  }
}

TEST_F(NoiseOfARun, IsTheSameWhateverPassesMakeTheSmallBatch) {
  for (const bool on_device : {false, true}) {
    TrainingRank whole(experiment("names", sgd + Settings{"noise.small_batch=2", "batch.micro=2"}), on_device);
    TrainingRank halves(experiment("names", sgd + Settings{"noise.small_batch=2", "batch.micro=1"}), on_device);
    TrainingRank unstated(experiment("names", sgd + Settings{"batch.micro=2"}), on_device);
    EXPECT_EQ(halves.plan.batch.passes_of_small_batch(), 2);
    for (int step = 0; step < 4; ++step) {
      const StepReport one = whole.trainer->step({}), two = halves.trainer->step({});
      expect_near(two.noise->estimate, one.noise->estimate, 1e-4);
      EXPECT_EQ(unstated.trainer->step({}).noise->estimate.trace, one.noise->estimate.trace);
    }
  }
}

// Each rank can take the norm of its own gradient before the sum over ranks. With one small batch a rank, no second
// vector is needed.
TEST_F(NoiseOfARun, NeedsASecondVectorOnlyWhereARankHasSeveralSmallBatches) {
  const auto bytes_of = [&](const Settings& settings) {
    TrainingRank run(experiment("names", settings), false);
    std::int64_t planned = 0;
    for (const MemoryItem& item : rank_memory(run.plan, *run.backend))
      if (item.what.find("noise scale") != std::string::npos) planned += item.bytes;
    return std::pair(run.backend->allocated_bytes(), planned);
  };
  const std::string rows = cat("batch.micro=", 24 / session().size());
  const auto off = bytes_of({"noise.every_steps=0"}), several = bytes_of({});
  const auto one_off = bytes_of({rows, "noise.every_steps=0"}), one = bytes_of({rows});
  EXPECT_EQ(off.second, 0);
  EXPECT_GT(several.second, 0);
  EXPECT_EQ(several.first - off.first, several.second);
  EXPECT_EQ(one.second, 0);
  EXPECT_EQ(one.first, one_off.first);
}

TEST_F(NoiseOfARun, IsNoneWhereOneRankHasOnePass) {
  const Settings whole = {cat("batch.micro=", 24 / session().size())};
  TrainingRank run(experiment("names", whole), false);
  EXPECT_EQ(run.plan.measures_noise, session().size() > 1);
  EXPECT_EQ(run.trainer->step({}).noise.has_value(), session().size() > 1);
  EXPECT_EQ(describe_run(run.plan, "", {}).find("one rank does the whole batch") == std::string::npos,
            session().size() > 1);
}

TEST_F(NoiseOfARun, IsMeasuredBeforeClippingAndDecay) {
  TrainingRank plain(experiment("names", sgd), false);
  TrainingRank clipped(experiment("names", sgd + Settings{"optimizer.clip_norm=0.001", "optimizer.weight_decay=0.5"}),
                       false);
  const StepReport a = plain.trainer->step({}), b = clipped.trainer->step({});
  EXPECT_EQ(a.noise->estimate.trace, b.noise->estimate.trace);
  EXPECT_EQ(a.noise->estimate.gradient, b.noise->estimate.gradient);
}

TEST_F(NoiseOfARun, HasNoLossScaleInIt) {
  TrainingRank fp32(experiment("names", sgd), true);
  const NoiseEstimate expected = fp32.trainer->step({}).noise->estimate;
  for (const char* scale : {"8", "1024"}) {
    TrainingRank fp16(experiment("names", sgd + Settings{"precision=fp16", "loss_scale.growth_steps=0",
                                                         cat("loss_scale.initial=", scale)}),
                      true);
    expect_near(fp16.trainer->step({}).noise->estimate, expected, 0.03);
  }
}

TEST_F(NoiseOfARun, IsNotMeasuredWhereTheGradientOverflows) {
  TrainingRank run(experiment("names", {"precision=fp16", "loss_scale.initial=16777216"}), true);
  StepReport report = run.trainer->step({});
  ASSERT_FALSE(report.applied);
  for (; !report.applied; report = run.trainer->step({})) {
    EXPECT_FALSE(report.noise.has_value());
    EXPECT_TRUE(run.trainer->noise().scale().empty());
  }
  ASSERT_TRUE(report.noise.has_value());
  EXPECT_TRUE(std::isfinite(report.noise->estimate.trace));
}

TEST_F(NoiseOfARun, MeasuringChangesNoWeightBitForBit) {
  for (const bool on_device : {false, true}) {
    const auto weights_with = [&](const Settings& noise) {
      TrainingRank run(experiment("names", noise), on_device);
      run.steps(5);
      return run.weights();
    };
    const std::vector<float> off = weights_with({"noise.every_steps=0"});
    EXPECT_EQ(weights_with({}), off);
    EXPECT_EQ(weights_with({"noise.every_steps=2"}), off);
    EXPECT_EQ(weights_with({"noise.small_batch=2"}), off);
  }
}

TEST_F(NoiseOfARun, IsMeasuredEverySoManySteps) {
  TrainingRank run(experiment("names", {"noise.every_steps=3"}), false);
  for (const StepReport& report : run.steps(7))
    EXPECT_EQ(report.noise.has_value(), report.position.step % 3 == 0) << report.position.step;
}

TEST_F(NoiseOfARun, GoesOnInMidAverageBitForBitAfterAResume) {
  for (const bool on_device : {false, true}) {
    const Experiment e = experiment("names", {"noise.half_life=48"});
    TrainingRank first(e, on_device);
    first.steps(5);
    const Checkpoint checkpoint = first.snapshot();
    const std::vector<StepReport> expected = first.steps(3);
    TrainingRank resumed(e, on_device, &checkpoint);
    const std::vector<StepReport> reports = resumed.steps(3);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].noise->scale.value, expected[i].noise->scale.value);
      EXPECT_EQ(reports[i].noise->scale.low, expected[i].noise->scale.low);
      EXPECT_EQ(reports[i].noise->scale.high, expected[i].noise->scale.high);
    }
    EXPECT_EQ(resumed.trainer->noise().scale().state(), first.trainer->noise().scale().state());
  }
}

// The gradients lie in one bucket or in several. The smallest buckets are shorter than a tensor's padding.
TEST_F(NoiseOfARun, OfGroupsAddsUpToTheWhole) {
  for (const bool on_device : {false, true})
    for (const char* groups : {"kind", "tensor"})
      for (const char* bucket : {"0", "0.004", "0.0001"}) {
        const Settings settings = sgd + Settings{"noise.small_batch=2", cat("noise.groups=", groups),
                                                 cat("communication.bucket_mib=", bucket)};
        TrainingRank run(experiment("names", settings), on_device);
        TrainingRank whole(experiment("names", sgd + Settings{"noise.small_batch=2"}), on_device);
        run.steps(3);
        whole.steps(3);
        const NoiseEstimate mean = run.trainer->noise().scale().mean();
        expect_near(mean, whole.trainer->noise().scale().mean(), 1e-6);
        const NoiseGroups& all = *run.trainer->noise().groups();
        EXPECT_EQ(all.size(), std::string(groups) == "kind" ? 2u : run.plan.parameters.all().size());
        NoiseEstimate sum;
        for (std::size_t i = 0; i < all.size(); ++i) {
          sum.trace += all.scale(i).mean().trace;
          sum.gradient += all.scale(i).mean().gradient;
        }
        expect_near(sum, mean, 1e-9);
      }
}

// Applies the definition element by element to gradients that are computed one by one.
TEST_F(NoiseOfARun, OfAGroupIsThatOfItsElements) {
  for (const bool on_device : {false, true}) {
    const Experiment e =
        experiment("names", sgd + Settings{"noise.small_batch=2", "model.dropout=0", "noise.groups=tensor"});
    TrainingRank run(e, on_device);
    const std::vector<float> weights = run.weights();
    run.trainer->step({});
    const NoiseGroups& groups = *run.trainer->noise().groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Parameter& p = run.plan.parameters.find(groups.name(i));
      expect_near(groups.scale(i).mean(), from_gradients_apart(e, weights, {p.offset, p.offset + p.count}), 2e-4);
    }
  }
}

TEST_F(NoiseOfARun, OfGroupsIsTheSameOnAnyNumberOfRanksAndInRecordsOfKindsOnly) {
  for (const bool on_device : {false, true}) {
    const Experiment e = experiment("names", sgd + Settings{"noise.small_batch=2", "noise.groups=kind"});
    TrainingRank alone(e, on_device, nullptr, true), together(e, on_device);
    alone.steps(4);
    const StepReport report = together.steps(4).back();
    ASSERT_EQ(report.noise->groups.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const NoiseScale& own = together.trainer->noise().groups()->scale(i);
      expect_near(own.mean(), alone.trainer->noise().groups()->scale(i).mean(), 1e-4);
      EXPECT_EQ(report.noise->groups[i].first, i == 0 ? "weight" : "bias");
      EXPECT_EQ(report.noise->groups[i].second, own.ratio().value);
    }
  }
  TrainingRank tensors(experiment("names", {"noise.groups=tensor"}), false);
  EXPECT_TRUE(tensors.trainer->step({}).noise->groups.empty());
}

TEST_F(NoiseOfARun, OfGroupsHasNoLossScaleInIt) {
  const Settings kinds = sgd + Settings{"noise.groups=kind"};
  TrainingRank fp32(experiment("names", kinds), true);
  TrainingRank fp16(
      experiment("names", kinds + Settings{"precision=fp16", "loss_scale.growth_steps=0", "loss_scale.initial=1024"}),
      true);
  fp32.trainer->step({});
  fp16.trainer->step({});
  for (std::size_t i = 0; i < 2; ++i)
    expect_near(fp16.trainer->noise().groups()->scale(i).mean(), fp32.trainer->noise().groups()->scale(i).mean(), 0.03);
}

TEST_F(NoiseOfARun, OfGroupsGoesOnBitForBitAfterAResumeAndBeginsAnewWithOtherGroups) {
  const Experiment e = experiment("names", {"noise.half_life=48", "noise.groups=tensor"});
  TrainingRank first(e, false);
  first.steps(5);
  const Checkpoint checkpoint = first.snapshot();
  first.steps(3);
  TrainingRank resumed(e, false, &checkpoint);
  resumed.steps(3);
  const NoiseGroups &is = *resumed.trainer->noise().groups(), &expected = *first.trainer->noise().groups();
  for (std::size_t i = 0; i < is.size(); ++i) EXPECT_EQ(is.scale(i).state(), expected.scale(i).state()) << is.name(i);
  EXPECT_EQ(resumed.weights(), first.weights());
  TrainingRank kinds(experiment("names", {"noise.groups=kind"}), false, &checkpoint);
  EXPECT_TRUE(kinds.trainer->noise().groups()->scale(0).empty());
  TrainingRank off(experiment("names", {}), false, &checkpoint);
  EXPECT_FALSE(off.trainer->noise().groups().has_value());
}

}  // namespace
}  // namespace ringtrain
