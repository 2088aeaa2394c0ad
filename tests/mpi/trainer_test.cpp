// The trainer on (host) devices whose streams run as late as events allow: what a step reports is its own although the
// next one has begun.
#include "train/trainer.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "backend/cuda/backend.h"
#include "base/error.h"
#include "checkpoint/resume_rules.h"
#include "checkpoint/snapshot.h"
#include "cluster/staged_communicator.h"
#include "config/reader.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "mpi_tests.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

using Settings = std::vector<std::string>;
const Settings streams = {"data.order=streams", "data.sequence=8"};

class TrainerOnDevices : public WithFolder {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(WithFolder::SetUp());
    std::ofstream names(folder_ / "names.txt"), text(folder_ / "text.txt");
    for (int i = 0; i < 200; ++i) {
      for (int n = 37 * i + 1; n > 0; n /= 7) {
        names << static_cast<char>('a' + n % 7);
        text << static_cast<char>('a' + n % 5);
      }
      names << "q\n";
    }
    names.close();
    text.close();
    std::ostringstream log;
    NamesOptions options;
    options.input.path = (folder_ / "names.txt").string();
    options.out = (folder_ / "names").string();
    options.validation = 0;
    convert_names(options, log);
    TextOptions running;
    running.input = (folder_ / "text.txt").string();
    running.out = (folder_ / "text").string();
    running.validation = 0;
    convert_text(running, log);
  }

  Experiment experiment(const std::string& data, const Settings& more) const {
    std::ofstream(folder_ / "experiment.yaml")
        << "name: test\nmodel: {kind: char_lstm, hidden: 16, layers: 2, dropout: 0.2}\ndata: {train: "
        << (folder_ / data).string() << "-train}\nbatch: {global: 24, worker: 2, micro: 2}\n"
        << "optimizer: {kind: adam, clip_norm: 1.0}\nlearning_rate: {base: 0.01}\nstop: {steps: 1000}\n";
    return read_experiment((folder_ / "experiment.yaml").string(), more);
  }
};

// One rank's machine and trainer.
struct TrainingRank {
  std::unique_ptr<Communicator> host = make_mpi_communicator(session().job(), 1 << 12);
  std::unique_ptr<cuda::HostDevice> device;
  std::unique_ptr<DeviceCommunicator> sums;
  std::unique_ptr<Backend> backend;
  Watchdog watchdog{session().job(), 0};
  RunPlan plan;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<Trainer> trainer;

  TrainingRank(const Experiment& experiment, bool on_device, const Checkpoint* checkpoint = nullptr) {
    if (on_device) {
      device = std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.order = {cuda::RunOrder::Kind::latest, 0}});
      sums = make_staged_communicator(*device, *host);
      cuda::BackendOptions options;
      options.segment_elements = 512;
      options.allocate_reduced = [this](std::int64_t bytes) { return sums->allocate(bytes); };
      options.release_reduced = [this](void* memory) { sums->release(memory); };
      backend = cuda::make_backend(*device, options);
    } else {
      backend = make_cpu_backend(1);
    }
    const DatasetIndex index = read_dataset_index(experiment.data.train);
    plan = make_run_plan(experiment, index, nullptr, session().size(), *backend);
    loader = std::make_unique<Loader>(make_dataset(plan.train), for_rank(plan.train_loader, session().rank()));
    trainer = std::make_unique<Trainer>(plan, *backend, communicator(), watchdog, *loader);
    std::array<std::int64_t, 1> step = {checkpoint == nullptr ? 0 : checkpoint->step};
    host->broadcast(std::as_writable_bytes(std::span(step)), 0);
    RunProgress progress;
    progress.position = position_at(step[0], plan.batch.global, plan.samples_per_epoch);
    load_trainer(session().rank() == 0 ? checkpoint : nullptr, *trainer, plan, progress, communicator());
  }
  Communicator& communicator() { return sums ? static_cast<Communicator&>(*sums) : *host; }
  std::vector<StepReport> steps(int count, const Requests& requests = {}) {
    std::vector<StepReport> reports;
    for (int i = 0; i < count; ++i) reports.push_back(trainer->step(requests));
    return reports;
  }
  std::vector<float> weights() {
    std::vector<float> values(static_cast<std::size_t>(plan.parameters.size()));
    backend->copy_to_host(trainer->weights(), 0, values);
    return values;
  }
  Checkpoint snapshot() {
    RunProgress progress;
    progress.position = trainer->position();
    return take_snapshot(*trainer, plan, progress, communicator());
  }
  // Forward passes that the device has been given.
  std::int64_t passes() const {
    std::int64_t count = 0;
    for (const cuda::Call& call : device->flat_calls()) count += call.name == "cross_entropy";
    return count;
  }
};

TEST_F(TrainerOnDevices, EveryStepReportsWhatTheCpuReports) {
  for (const auto& [data, settings] :
       {std::pair<std::string, Settings>{"names", {}}, {"names", {"data.blanks=masked"}}, {"text", streams}}) {
    SCOPED_TRACE(data);
    const Experiment e = experiment(data, settings);
    TrainingRank cpu(e, false), gpu(e, true);
    for (int step = 0; step < 6; ++step) {
      const Requests requests{.signal = step == 2 && session().rank() == 0 ? 1.0 : 0.0, .save = step == 4 ? 1.0 : 0.0};
      const StepReport expected = cpu.trainer->step(requests), report = gpu.trainer->step(requests);
      EXPECT_EQ(report.position.step, step + 1);
      EXPECT_NEAR(report.loss, expected.loss, 1e-4 * expected.loss) << step;
      EXPECT_NEAR(report.accuracy, expected.accuracy, 0.02) << step;
      EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-3 * expected.gradient_norm) << step;
      EXPECT_EQ(report.learning_rate, expected.learning_rate);
      EXPECT_EQ(report.requests.signal, step == 2 ? 1 : 0);
      EXPECT_EQ(report.requests.save, step == 4 ? session().size() : 0);
      EXPECT_TRUE(report.applied);
    }
  }
}

TEST_F(TrainerOnDevices, AStepReturnsWithTheNextOnesFirstPassUnderWayWhereItMay) {
  struct Case {
    std::string data;
    Settings settings;
    std::int64_t ahead;
  };
  // Carried state is a checkpoint's, and a dynamic loss scale is known late.
  for (const Case& c : {Case{"names", {}, 1},
                        {"text", streams, 0},
                        {"names", {"precision=fp16"}, 0},
                        {"names", {"precision=fp16", "loss_scale.initial=8", "loss_scale.growth_steps=0"}, 1}}) {
    SCOPED_TRACE(c.data + (c.settings.empty() ? "" : c.settings.back()));
    TrainingRank run(experiment(c.data, c.settings), true);
    for (int step = 0; step < 3; ++step) {
      run.steps(1);
      EXPECT_EQ(run.passes(), (step + 1) * run.plan.batch.accumulation + c.ahead);
    }
  }
}

TEST_F(TrainerOnDevices, NoPassIsBegunBehindTheLastStep) {
  TrainingRank run(experiment("names", {"stop.steps=3"}), true);
  run.steps(3);
  EXPECT_EQ(run.passes(), 3 * run.plan.batch.accumulation);
}

TEST_F(TrainerOnDevices, ResumedIsUninterruptedBitForBit) {
  for (const auto& [data, settings] :
       {std::pair<std::string, Settings>{"names", {}}, {"text", streams}, {"names", {"precision=fp16"}}}) {
    SCOPED_TRACE(data);
    const Experiment e = experiment(data, settings);
    TrainingRank first(e, true);
    first.steps(3);
    const Checkpoint checkpoint = first.snapshot();
    const std::vector<StepReport> expected = first.steps(3);
    TrainingRank resumed(e, true, &checkpoint);
    const std::vector<StepReport> reports = resumed.steps(3);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(reports[i].position, expected[i].position);
      EXPECT_EQ(reports[i].loss, expected[i].loss);
      EXPECT_EQ(reports[i].gradient_norm, expected[i].gradient_norm);
    }
    EXPECT_EQ(resumed.weights(), first.weights());
  }
}

const Settings overflows = {"precision=fp16", "loss_scale.initial=16777216"};

// Skipped updates do not count for Adam's bias correction, before a checkpoint and after it.
TEST_F(TrainerOnDevices, ResumedAfterSkippedUpdatesIsUninterruptedBitForBit) {
  const Experiment e = experiment("names", overflows);
  TrainingRank first(e, true);
  std::int64_t skipped = 0;
  while (first.trainer->optimizer().applied().updates < 2) skipped += first.steps(1).front().applied ? 0 : 1;
  ASSERT_GT(skipped, 0);
  Checkpoint checkpoint = first.snapshot();
  if (session().rank() == 0) {
    EXPECT_EQ(checkpoint.numbers.at("applied_updates"), 2);
    EXPECT_EQ(checkpoint.numbers.at("applied_rate"), 0.01);
  }
  first.steps(3);
  TrainingRank resumed(e, true, &checkpoint);
  EXPECT_EQ(resumed.trainer->optimizer().applied().updates, 2);
  resumed.steps(3);
  EXPECT_EQ(resumed.weights(), first.weights());
}

// Checkpoints of earlier versions say nothing of it: every step was applied, at the rate of the step before.
TEST_F(TrainerOnDevices, CheckpointsThatDoNotSayWhatWasAppliedResumeAsIfEveryStepWas) {
  const Settings sgd = {"optimizer.kind=sgd", "optimizer.clip_norm=0", "optimizer.rate_in_momentum=true",
                        "optimizer.momentum_correction=true"};
  TrainingRank first(experiment("names", sgd), false);
  first.steps(3);
  Checkpoint checkpoint = first.snapshot();
  checkpoint.numbers.erase("applied_updates");
  checkpoint.numbers.erase("applied_rate");
  first.steps(2);
  TrainingRank resumed(experiment("names", sgd), false, &checkpoint);
  EXPECT_EQ(resumed.trainer->optimizer().applied().updates, 3);
  EXPECT_EQ(resumed.trainer->optimizer().applied().rate, 0.01);
  resumed.steps(2);
  EXPECT_EQ(resumed.weights(), first.weights());
}

TEST_F(TrainerOnDevices, CheckpointsWithRetiredKeysBelongToTheirRun) {
  TrainingRank run(experiment("names", {}), false);
  Checkpoint checkpoint = run.snapshot();
  if (session().rank() != 0) return;
  std::string& text = checkpoint.texts.at("experiment");
  const std::string now = "no_decay: [norm, bias]", then = "decay_norm_and_bias: false";
  ASSERT_NE(text.find(now), std::string::npos);
  text.replace(text.find(now), now.size(), then);
  EXPECT_NO_THROW(check_belongs(checkpoint, "c.h5", run.plan));
  EXPECT_TRUE(changed_keys(experiment_of(checkpoint, "c.h5"), run.plan.experiment).empty());
}

TEST_F(TrainerOnDevices, AResumeAtAnotherRateCorrectsMomentumByTheRateThatWasApplied) {
  Settings sgd = {"optimizer.kind=sgd", "optimizer.clip_norm=0", "optimizer.rate_in_momentum=true",
                  "optimizer.momentum_correction=true"};
  Settings outside = {"optimizer.kind=sgd", "optimizer.clip_norm=0"};  // this form needs no correction
  std::vector<std::vector<float>> weights;
  for (Settings* settings : {&sgd, &outside}) {
    TrainingRank first(experiment("names", *settings), false);
    first.steps(3);
    const Checkpoint checkpoint = first.snapshot();
    settings->push_back("learning_rate.base=0.05");
    TrainingRank resumed(experiment("names", *settings), false, &checkpoint);
    resumed.steps(2);
    weights.push_back(resumed.weights());
  }
  for (std::size_t i = 0; i < weights[0].size(); ++i) ASSERT_NEAR(weights[0][i], weights[1][i], 1e-6) << i;
}

TEST_F(TrainerOnDevices, Fp16BeginsAtItsOwnLossScaleAfterAnotherPrecisionAndGoesOnWithItAfterFp16) {
  const auto scale_after = [this](const Settings& before, const Settings& now) {
    TrainingRank first(experiment("names", before), true);
    first.steps(1);
    const Checkpoint checkpoint = first.snapshot();
    TrainingRank resumed(experiment("names", now), true, &checkpoint);
    return resumed.trainer->loss_scale().value();
  };
  const Settings fp16 = {"precision=fp16", "loss_scale.initial=64"};
  for (const Settings& other : {Settings{"precision=fp32"}, Settings{"precision=bf16"}}) {
    SCOPED_TRACE(other[0]);
    EXPECT_EQ(scale_after(other, fp16), 64);
    EXPECT_EQ(scale_after(fp16, other), 1);
  }
  EXPECT_EQ(scale_after({"precision=fp16", "loss_scale.initial=32"}, fp16), 32);
}

TEST_F(TrainerOnDevices, AnOverflowIsReportedByItsStepAndHalvesTheNextOnesScale) {
  TrainingRank run(experiment("names", {"precision=fp16", "loss_scale.initial=16777216"}), true);
  const std::vector<float> before = run.weights();
  StepReport report = run.steps(1).front();
  ASSERT_FALSE(report.applied);
  EXPECT_EQ(run.weights(), before);
  for (int tries = 0; !report.applied && tries < 30; ++tries) {
    const float scale = report.loss_scale;
    report = run.steps(1).front();
    EXPECT_EQ(report.loss_scale, scale / 2);
  }
  EXPECT_TRUE(report.applied);
  EXPECT_NE(run.weights(), before);
}

TEST_F(TrainerOnDevices, ALossThatIsNotFiniteEndsTheRunBeforeAnyWeightHasChanged) {
  for (const bool on_device : {false, true})
    for (const float bad : {INFINITY, -INFINITY}) {  // the second leaves the gradient's formula finite
      TrainingRank run(experiment("names", {}), on_device);
      std::vector<float> weights = run.weights();
      weights[static_cast<std::size_t>(run.plan.parameters.find("linear.bias").offset)] = bad;
      run.backend->copy_from_host(weights, run.trainer->weights(), 0);
      run.trainer->start_at({});
      EXPECT_THROW(run.steps(1), Error);
      EXPECT_EQ(run.weights(), weights);
    }
}

}  // namespace
}  // namespace ringtrain
