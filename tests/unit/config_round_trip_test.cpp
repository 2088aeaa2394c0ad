// Tests that the reader reads every experiment that the writer writes.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "tests/unit/good_experiment.h"

namespace ringtrain {
namespace {

TEST(ConfigReader, TheResolvedExperimentReadsBackAsItself) {
  // Together these overrides give every key a value that is not its default.
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"name=null", "seed=18446744073709551615", "precision=bf16", "model.hidden=7", "model.layers=1",
       "model.dropout=0.30000000000000004", "data.train=a \"b\"\\c: #d/ä", "data.validation=- 1", "data.order=streams",
       "data.sequence=50", "data.blanks=masked", "data.loader_threads=3", "data.prefetch=9", "batch.micro=8"},
      {"name=1.50", "optimizer.kind=sgd", "optimizer.momentum=0.875", "optimizer.nesterov=true",
       "optimizer.weight_decay=3.0517578125e-5", "optimizer.no_decay=[bias, norm]", "optimizer.clip_norm=0.1",
       "learning_rate.base=0.1", "learning_rate.base_batch=32", "learning_rate.scaling=linear",
       "learning_rate.warmup_epochs=1.5", "learning_rate.schedule=step", "learning_rate.milestones=[2,3.1,1e1]",
       "learning_rate.factor=0.97", "stop.epochs=12", "run.dir=true"},
      {"optimizer.kind=lars", "optimizer.trust_coefficient=0.02", "optimizer.lars_form=mlperf",
       "optimizer.no_trust=[norm]", "optimizer.record_trust_every_steps=10"},
      {"communication.order=fixed", "run.threads=2"},
      {"optimizer.kind=lamb", "optimizer.trust_undecayed=true", "optimizer.clip_value=5"},
      {"branch.from=a b@2", "branch.batch_factor=2", "branch.rate_factor=1.4142135623730951", "branch.samples=1000",
       "checkpoint.keep_at=[0, 2.5, 500 steps]"},
      {"optimizer.kind=rmsprop_to_sgd", "optimizer.transition_center=8.5", "optimizer.transition_length=4",
       "optimizer.transition_rate=0.001"},
      {"optimizer.kind=adamw",
       "optimizer.beta1=0.8",
       "optimizer.beta2=0.95",
       "optimizer.epsilon=1e-6",
       "learning_rate.warmup_steps=5",
       "learning_rate.warmup_from=zero",
       "learning_rate.schedule=polynomial",
       "learning_rate.power=1",
       "learning_rate.end=1e-5",
       "stop.steps=1000000000000",
       "stop.seconds=0.5",
       "stop.diverged_share=0.1",
       "stop.target_metric=validation_accuracy",
       "stop.target_value=0.75",
       "data.validation=v",
       "evaluate.every_epochs=0.25",
       "evaluate.every_steps=10",
       "checkpoint.every_epochs=0",
       "checkpoint.every_steps=3",
       "checkpoint.every_seconds=600",
       "checkpoint.keep=5",
       "checkpoint.best=false",
       "machine.device=cpu",
       "machine.graphs=false",
       "machine.search_seconds=5",
       "machine.plan_cache=plans",
       "communication.library=mpi",
       "communication.algorithm=tree",
       "communication.gradient_type=bf16",
       "communication.max_ctas=8",
       "communication.bucket_mib=0.5",
       "communication.chunk_kib=64",
       "communication.node_latency_us=0.5",
       "communication.node_gb_s=8",
       "communication.network_latency_us=4",
       "communication.network_gb_s=25",
       "communication.timeout_seconds=5",
       "run.id=on",
       "run.log_every_steps=2",
       "run.threads=3"},
      {"model.kind=resnet",
       "model.depth=18",
       "model.width=32",
       "model.stem=small",
       "model.zero_gamma=false",
       "model.norm_momentum=0.01",
       "data.image_size=64",
       "data.channels=1",
       "data.resize=72",
       "data.crop_area=[0.2,0.9]",
       "data.crop_ratio=[0.5,2]",
       "data.flip=false",
       "data.mean=[0.5,0.5,0.5]",
       "data.std=[0.2,0.2,0.2]",
       "data.train_samples=1281167",
       "data.validation_samples=50000",
       "data.classes=1000",
       "data.reads=16",
       "loss.label_smoothing=0.1",
       "optimizer.kind=sgd",
       "optimizer.rate_in_momentum=true",
       "optimizer.momentum_correction=true",
       "precision=fp16",
       "loss_scale.initial=128",
       "loss_scale.growth_steps=0"},
      {"data.augmentation=pad_crop", "data.pad=8", "noise.every_steps=5", "noise.small_batch=32",
       "noise.half_life=100000", "noise.groups=kind", "model.initial=uniform", "model.initial_range=0.08",
       "model.forget_bias=1", "data.last_batch=smaller", "batch.schedule=[[1.5,2], [3, 4.0]]", "batch.largest=256",
       "learning_rate.schedule=points", "learning_rate.points=[[0,0.5],[7.5,1e-3]]", "learning_rate.every=epoch"},
      {"batch.follow_noise=0.5", "batch.patience=2000", "batch.largest=256", "noise.small_batch=16",
       "model.kind=resnet", "model.stride_in=1x1", "evaluate.norm_statistics=recomputed", "evaluate.norm_samples=4096",
       "evaluate.offset_epochs=2"},
      {"model.kind=alexnet", "model.norm=true"},
      {"model.kind=resnet", "model.depth=8", "model.stem=small", "model.normalization=group", "model.norm_groups=16"},
      {"model.kind=cnn", "model.channels=[32, 64]", "model.kernel=5", "model.widths=[1024]"},
      {"optimizer.kind=muon", "optimizer.muon_rate=match_rms_adamw", "optimizer.other_kind=sgd",
       "optimizer.other_rate=0.1"},
      {"optimizer.kind=sgd", "optimizer.schedule_free=true", "memory.recompute=[layer1.0, layer2]",
       "memory.offload=true", "memory.limit_gib=1.5"},
      {"parallel.kind=server", "parallel.mode=async", "parallel.servers=2", "parallel.max_staleness=3",
       "parallel.staleness_rate=inverse", "parallel.replay=first/arrivals.csv", "noise.every_steps=0"},
      {"parallel.kind=server", "parallel.backup_workers=1", "noise.every_steps=0"},
      {"parallel.kind=pipeline", "parallel.stages=3", "parallel.cuts=[lstm.l1, linear]", "parallel.schedule=gpipe"},
      {"test.slow_rank=1", "test.slow_seconds=0.25", "parallel.shard_state=true"},
      {"test.flip_bit_rank=1", "test.flip_bit_step=3", "test.flip_bit_in=weights/fc.weight",
       "communication.check_every_steps=10"},
      {"optimizer.kind=sgd", "optimizer.adascale=true", "learning_rate.base_batch=16", "noise.small_batch=16"},
      {"optimizer.kind=adamw", "optimizer.half_life.beta1=200", "optimizer.half_life.beta2=5000.5",
       "optimizer.weight_decay_by=sample", "average.half_life=1000", "average.from_epoch=1.5", "average.evaluate=false",
       "data.share=0.25"},
      {"optimizer.kind=muon", "optimizer.half_life.momentum=128"},
      {"learning_rate.scaling=adam_sde", "learning_rate.base_batch=32"},
  };
  std::set<std::string_view> changed;
  for (const auto& overrides : variants) {
    const Experiment experiment = parse_experiment(good, "exp.yaml", overrides);
    const std::string yaml = to_yaml(experiment);
    EXPECT_TRUE(parse_experiment(yaml, "resolved.yaml", {}) == experiment) << yaml;
    for (const Field& field : schema())
      if (value_text(field, experiment) != value_text(field, Experiment())) changed.insert(field.key);
  }
  for (const Field& field : schema())
    EXPECT_TRUE(changed.contains(field.key) || field.words_.size() == 1) << field.key << " was not tried";
}

}  // namespace
}  // namespace ringtrain
