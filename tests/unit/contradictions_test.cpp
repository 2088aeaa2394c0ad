// Tests which keys of an experiment contradict each other, and what the errors say.
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/reader.h"
#include "tests/unit/bad_experiment.h"
#include "tests/unit/good_experiment.h"

namespace ringtrain {
namespace {

TEST(Contradictions, EveryContradictionIsReportedAtTheLaterKey) {
  const std::string lr = "learning_rate:\n", adascale = "optimizer:\n  kind: sgd\n  adascale: true\n";
  const std::vector<BadExperiment> cases = {
      {replaced(good, "16", "24"),
       {},
       "exp.yaml:6:3: batch.worker is 24 but batch.global is 64, expected a worker that divides global"},
      {good,
       {"batch.global=63"},
       "override 'batch.global=63': batch.worker is 16 but batch.global is 63, expected a worker that divides global"},
      {replaced(good, "  worker", "  micro: 7\n  worker"),
       {},
       "exp.yaml:6:3: batch.micro is 7 but batch.global is 64, expected a micro that divides global"},
      {good + "noise:\n  small_batch: 24\n",
       {},
       "exp.yaml:9:3: noise.small_batch is 24 but batch.worker is 16, expected a multiple of batch.worker"},
      {good + "noise:\n  small_batch: 64\n",
       {},
       "exp.yaml:9:3: noise.small_batch is 64 but batch.global is 64, expected a smaller number that divides "
       "batch.global"},
      {good + "noise:\n  groups: kind\n",
       {"noise.every_steps=0"},
       "override 'noise.every_steps=0': noise.groups is kind but noise.every_steps is 0, expected a measurement, or "
       "groups: none"},
      {good + "noise:\n  small_batch: 16\n",
       {"batch.micro=32"},
       "override 'batch.micro=32': noise.small_batch is 16 but batch.micro is 32, expected a multiple of batch.micro"},
      {good + "optimizer:\n  kind: sgd\n  beta1: 0.8\n",
       {},
       "exp.yaml:10:3: optimizer.beta1 is 0.8 but optimizer.kind is sgd; optimizer.beta1 may be set only with adam or "
       "adamw or lamb or muon"},
      {good + "optimizer:\n  beta1: 0.8\n  kind: sgd\n",
       {},
       "exp.yaml:10:3: optimizer.beta1 is 0.8 but optimizer.kind is sgd; optimizer.beta1 may be set only with adam or "
       "adamw or lamb or muon"},
      {good + "optimizer:\n  momentum: 0.5\n",
       {},
       "exp.yaml:9:3: optimizer.momentum is 0.5 but optimizer.kind is adam; optimizer.momentum may be set only with "
       "sgd or lars or rmsprop_to_sgd or muon"},
      {good + adascale,
       {},
       "exp.yaml:10:3: optimizer.adascale is true but learning_rate.base_batch is 0, expected the batch for which "
       "learning_rate.base was chosen, at most batch.global"},
      {good + adascale,
       {"learning_rate.base_batch=128"},
       "override 'learning_rate.base_batch=128': optimizer.adascale is true but learning_rate.base_batch is 128, "
       "expected the batch for which learning_rate.base was chosen, at most batch.global"},
      {good + adascale,
       {"learning_rate.base_batch=16", "learning_rate.scaling=linear"},
       "override 'learning_rate.scaling=linear': optimizer.adascale is true but learning_rate.scaling is linear, "
       "expected none: the gain takes the place of a scaling"},
      {good + adascale,
       {"learning_rate.base_batch=16", "optimizer.rate_in_momentum=true", "optimizer.momentum_correction=true"},
       "override 'optimizer.momentum_correction=true': optimizer.adascale is true but optimizer.momentum_correction is "
       "true, expected false"},
      {good + adascale,
       {"learning_rate.base_batch=16", "batch.schedule=[[1,2]]"},
       "override 'batch.schedule=[[1,2]]': optimizer.adascale is true but batch.schedule is [[1, 2]], expected a "
       "constant "
       "batch"},
      {good + adascale,
       {"learning_rate.base_batch=16", "batch.follow_noise=1"},
       "override 'batch.follow_noise=1': optimizer.adascale is true but batch.follow_noise is 1, expected a constant "
       "batch"},
      {good + adascale,
       {"learning_rate.base_batch=16", "data.last_batch=smaller"},
       "override 'data.last_batch=smaller': optimizer.adascale is true but data.last_batch is smaller, expected drop: "
       "every step has the same batch"},
      {good + adascale,
       {"learning_rate.base_batch=16", "stop.steps=100", "stop.epochs=0", "learning_rate.schedule=cosine"},
       "override 'learning_rate.schedule=cosine': optimizer.adascale is true but stop.epochs is 0, expected the length "
       "of the cosine schedule: stop.steps counts updates"},
      {good,
       {"model.kind=resnet", "model.normalization=group", "model.width=20"},
       "override 'model.width=20': model.width is 20, expected a multiple of 16"},
      {good + adascale,
       {"learning_rate.base_batch=16", "stop.steps=100", "learning_rate.schedule=cosine", "stop.epochs=0"},
       "override 'stop.epochs=0': optimizer.adascale is true but stop.epochs is 0, expected the length of the cosine "
       "schedule: stop.steps counts updates"},
      {good + adascale,
       {"learning_rate.base_batch=16", "noise.small_batch=16", "noise.every_steps=2"},
       "override 'noise.every_steps=2': optimizer.adascale is true but noise.every_steps is 2, expected 1: each step's "
       "gain follows from its gradients"},
      {good + adascale,
       {"learning_rate.base_batch=16"},
       "exp.yaml:10:3: optimizer.adascale is true but noise.small_batch is 0, expected the batch whose gradients the "
       "gain is measured from"},
      {good + adascale, {"learning_rate.base_batch=64"}, "no error"},
      {good + "optimizer:\n  nesterov: true\n",
       {},
       "exp.yaml:9:3: optimizer.nesterov is true but optimizer.kind is adam; optimizer.nesterov may be set only with "
       "sgd"},
      {good + "optimizer:\n  lars_form: mlperf\n",
       {},
       "exp.yaml:9:3: optimizer.lars_form is mlperf but optimizer.kind is adam; optimizer.lars_form may be set only "
       "with lars"},
      {good,
       {"optimizer.kind=lamb", "optimizer.no_trust=[]"},
       "override 'optimizer.no_trust=[]': optimizer.no_trust is [] but optimizer.kind is lamb; optimizer.no_trust may "
       "be set only with lars"},
      {good,
       {"optimizer.trust_undecayed=true", "optimizer.kind=lars"},
       "override 'optimizer.kind=lars': optimizer.trust_undecayed is true but optimizer.kind is lars; "
       "optimizer.trust_undecayed may be set only with lamb"},
      {good + "optimizer:\n  kind: rmsprop\n  transition_center: 3\n",
       {},
       "exp.yaml:10:3: optimizer.transition_center is 3 but optimizer.kind is rmsprop; optimizer.transition_center may "
       "be set only with rmsprop_to_sgd"},
      {good,
       {"optimizer.kind=lars", "optimizer.clip_value=1"},
       "override 'optimizer.clip_value=1': optimizer.clip_value is 1 but optimizer.kind is lars; optimizer.clip_value "
       "may be set only with sgd or adam or adamw or lamb or rmsprop or rmsprop_to_sgd"},
      {good,
       {"optimizer.clip_value=1", "optimizer.clip_norm=2"},
       "override 'optimizer.clip_norm=2': optimizer.clip_norm is 2 and optimizer.clip_value is 1, expected only one of "
       "them"},
      {good,
       {"optimizer.record_trust_every_steps=5"},
       "override 'optimizer.record_trust_every_steps=5': optimizer.record_trust_every_steps is 5 but optimizer.kind is "
       "adam; optimizer.record_trust_every_steps may be set only with lars or lamb"},
      {good + "optimizer:\n  nesterov: true\n  kind: sgd\n  momentum: 0\n",
       {},
       "exp.yaml:11:3: optimizer.nesterov is true but optimizer.momentum is 0, expected a momentum above 0"},
      {good + "optimizer:\n  kind: sgd\n  momentum_correction: true\n",
       {},
       "exp.yaml:10:3: optimizer.momentum_correction is true but optimizer.rate_in_momentum is false, expected both: "
       "the "
       "other form needs no correction"},
      {good,
       {"model.kind=resnet", "model.depth=9"},
       "override 'model.depth=9': model.depth is 9, expected 8, 20, 32, 44, 56 or 110 (for CIFAR), or 18, 34, 50, 101 "
       "or 152"},
      {good,
       {"model.kind=resnet", "model.depth=20"},
       "override 'model.depth=20': model.depth is 20 but model.stem is imagenet, expected small: the ResNets for CIFAR "
       "begin with a 3 x 3 convolution"},
      {good,
       {"model.kind=resnet", "model.normalization=group", "model.width=16"},
       "override 'model.width=16': model.norm_groups is 32 but layer conv1 has 16 channels, expected a number of "
       "groups "
       "that divides the channels of every layer with a norm"},
      {good,
       {"model.kind=cnn", "model.normalization=group", "model.channels=[64, 48]", "model.norm_groups=32"},
       "override 'model.norm_groups=32': model.norm_groups is 32 but layer conv2 has 48 channels, expected a number of "
       "groups that divides the channels of every layer with a norm"},
      {good,
       {"model.kind=mlp", "model.widths=[64, 100]", "model.norm_groups=8", "model.normalization=group"},
       "override 'model.normalization=group': model.norm_groups is 8 but layer fc2 has 100 channels, expected a number "
       "of groups that divides the channels of every layer with a norm"},
      {good,
       {"model.kind=resnet", "model.norm_groups=16"},
       "override 'model.norm_groups=16': model.norm_groups is 16 but model.normalization is auto; model.norm_groups "
       "may "
       "be set only with group"},
      {good,
       {"model.kind=alexnet", "model.normalization=group"},
       "override 'model.normalization=group': model.normalization is group but model.kind is alexnet; "
       "model.normalization may be set only with resnet or cnn or mlp"},
      {good,
       {"model.normalization=batch"},
       "override 'model.normalization=batch': model.normalization is batch but model.kind is char_lstm; "
       "model.normalization may be set only with resnet or cnn or mlp"},
      {good,
       {"model.kind=cnn", "model.normalization=layer"},
       "override 'model.normalization=layer': model.normalization is 'layer', expected one of auto, batch, group, "
       "none"},
      {good,
       {"model.kind=resnet", "model.normalization=none", "model.zero_gamma=false"},
       "override 'model.zero_gamma=false': model.zero_gamma is false but model.normalization is none, expected "
       "model.zero_gamma left out: there is no gamma"},
      {good,
       {"model.kind=cnn", "model.norm_momentum=0.2"},
       "override 'model.norm_momentum=0.2': model.norm_momentum is 0.2 but model.normalization is auto, expected "
       "model.norm_momentum left out: only batch norm has running statistics"},
      {good,
       {"model.kind=resnet", "model.width=24"},
       "override 'model.width=24': model.width is 24, expected a multiple of 16"},
      {good,
       {"model.depth=18"},
       "override 'model.depth=18': model.depth is 18 but model.kind is char_lstm; model.depth may be set only with "
       "resnet"},
      {good,
       {"data.resize=128"},
       "override 'data.resize=128': data.resize is 128 but data.image_size is 224, expected resize at or above "
       "image_size, "
       "or 0"},
      {good,
       {"data.crop_area=[0.9,0.1]"},
       "override 'data.crop_area=[0.9,0.1]': data.crop_area is [0.9, 0.1], expected two numbers, the smaller one "
       "first"},
      {good,
       {"data.mean=[0.5,0.5,0.5]"},
       "override 'data.mean=[0.5,0.5,0.5]': data.mean is [0.5, 0.5, 0.5] and data.std is [], expected lists of the "
       "same length"},
      {good,
       {"loss.label_smoothing=0.1"},
       "override 'loss.label_smoothing=0.1': loss.label_smoothing is 0.1 but model.kind is char_lstm, expected a model "
       "of images"},
      {good + lr + "  scaling: linear\n",
       {},
       "exp.yaml:9:3: learning_rate.scaling is linear but learning_rate.base_batch is not given, expected the batch "
       "for which learning_rate.base was chosen"},
      {good + lr + "  warmup_from: zero\n  warmup_epochs: 1\n  warmup_steps: 5\n",
       {},
       "exp.yaml:11:3: learning_rate.warmup_epochs is 1 and learning_rate.warmup_steps is 5, expected only one of "
       "them"},
      {good + lr + "  warmup_steps: 5\n",
       {},
       "exp.yaml:9:3: warm-up from the base rate without scaling changes nothing, expected learning_rate.warmup_from: "
       "zero, a learning_rate.scaling, or no warm-up"},
      {good + lr + "  schedule: step\n",
       {},
       "exp.yaml:9:3: learning_rate.schedule is step but learning_rate.milestones is empty, expected epochs such as "
       "[30, 60, 80]"},
      {good + lr + "  milestones: [3]\n",
       {},
       "exp.yaml:9:3: learning_rate.milestones is [3] but learning_rate.schedule is constant; learning_rate.milestones "
       "may be set only with step"},
      {good + lr + "  schedule: step\n  milestones: [3, 3]\n",
       {},
       "exp.yaml:10:3: learning_rate.milestones is [3, 3], expected increasing epochs"},
      {good + lr + "  schedule: step\n  milestones: [3, 10]\n",
       {},
       "exp.yaml:10:3: learning_rate.milestones is [3, 10] but stop.epochs is 10, expected milestones before the end"},
      {good + lr + "  schedule: step\n  milestones: [3, 6]\n",
       {"stop.epochs=5"},
       "override 'stop.epochs=5': learning_rate.milestones is [3, 6] but stop.epochs is 5, expected milestones before "
       "the end"},
      {good + lr + "  schedule: step\n  milestones: [3, 9.5]\n  every: epoch\n",
       {},
       "exp.yaml:11:3: learning_rate.milestones is [3, 9.5], learning_rate.every is epoch and stop.epochs is 10: no "
       "epoch begins at or after the last milestone, expected milestones of at most 9, the last epoch's beginning"},
      {good + lr + "  schedule: step\n  milestones: [3]\n  warmup_epochs: 2\n  scaling: legw\n  base_batch: 32\n",
       {},
       "exp.yaml:12:3: learning_rate.milestones is [3] but warm-up takes 4 epochs, expected milestones after it"},
      {good + lr + "  schedule: points\n",
       {},
       "exp.yaml:9:3: learning_rate.schedule is points but learning_rate.points is empty, expected pairs of epoch and "
       "factor such as [[0, 0], [2, 1], [16, 0]]"},
      {good + lr + "  points: [[0, 1]]\n",
       {},
       "exp.yaml:9:3: learning_rate.points is [[0, 1]] but learning_rate.schedule is constant; learning_rate.points "
       "may be set only with points"},
      {good + lr + "  schedule: points\n  points: [[0, 1], [3, 0.5], [2, 0.1]]\n",
       {},
       "exp.yaml:10:3: learning_rate.points is [[0, 1], [3, 0.5], [2, 0.1]], expected epochs that do not decrease"},
      {good + lr + "  schedule: points\n  points: [[3, 1], [3, 0.5], [3, 0.1]]\n",
       {},
       "exp.yaml:10:3: learning_rate.points is [[3, 1], [3, 0.5], [3, 0.1]], expected at most two points at epoch 3: "
       "before and after a jump"},
      {good + lr + "  schedule: points\n  points: [[0, 0], [10, 0]]\n",
       {},
       "exp.yaml:10:3: learning_rate.points is [[0, 0], [10, 0]], expected a factor above 0"},
      {good + lr + "  schedule: points\n  points: [[0, 1], [16, 0]]\n",
       {},
       "exp.yaml:10:3: learning_rate.points is [[0, 1], [16, 0]] but stop.epochs is 10, expected points up to the end"},
      {good + lr + "  schedule: points\n  points: [[0, 1], [8, 0]]\n",
       {},
       "exp.yaml:10:3: learning_rate.points is [[0, 1], [8, 0]] but stop.epochs is 10, expected a last factor above 0, "
       "or the last point at the end: nothing is learned at a rate of 0"},
      {good + lr + "  schedule: cosine\n",
       {"stop.epochs=0", "stop.seconds=60"},
       "override 'stop.epochs=0': learning_rate.schedule is cosine and needs the length of the run, expected "
       "stop.epochs or stop.steps"},
      {good + lr + "  schedule: polynomial\n  end: 0.01\n",
       {},
       "exp.yaml:10:3: learning_rate.end is 0.01 but the peak rate is 0.001, expected an end at or below it"},
      {good + lr + "  schedule: cosine\n  warmup_from: zero\n  warmup_epochs: 10\n",
       {},
       "exp.yaml:11:3: learning_rate.schedule is cosine but warm-up lasts as long as the run, expected a shorter "
       "warm-up"},
      {good + lr + "  end: 0.0001\n",
       {},
       "exp.yaml:9:3: learning_rate.end is 0.0001 but learning_rate.schedule is constant; learning_rate.end may be set "
       "only with polynomial or cosine"},
      {good + lr + "  power: 1\n  schedule: cosine\n",
       {},
       "exp.yaml:10:3: learning_rate.power is 1 but learning_rate.schedule is cosine; learning_rate.power may be set "
       "only with polynomial"},
      {good + lr + "  factor: 0.5\n",
       {},
       "exp.yaml:9:3: learning_rate.factor is 0.5 but learning_rate.schedule is constant; learning_rate.factor may be "
       "set only with step or exponential"},
      {replaced(good, "stop: {epochs: 10}\n", ""),
       {},
       "exp.yaml:1:1: nothing ends the run, expected stop.epochs, stop.steps, stop.seconds or stop.target_metric"},
      {good,
       {"stop.epochs=0"},
       "override 'stop.epochs=0': nothing ends the run, expected stop.epochs, stop.steps, stop.seconds or "
       "stop.target_metric"},
      {good,
       {"stop.target_value=1.5"},
       "override 'stop.target_value=1.5': stop.target_value is 1.5 but stop.target_metric is not given, expected both "
       "or none"},
      {good,
       {"stop.target_value=1.5", "stop.target_metric=validation_loss"},
       "override 'stop.target_metric=validation_loss': stop.target_metric is validation_loss but data.validation is "
       "not given, expected validation data"},
      {good,
       {"data.validation=v", "stop.target_metric=validation_loss"},
       "override 'stop.target_metric=validation_loss': stop.target_metric is validation_loss but stop.target_value is "
       "0, expected a loss above 0"},
      {good,
       {"data.validation=v", "stop.target_metric=validation_accuracy", "stop.target_value=75"},
       "override 'stop.target_value=75': stop.target_metric is validation_accuracy but stop.target_value is 75, "
       "expected a share above 0 and at most 1"},
      {good,
       {"data.validation=v", "stop.target_metric=validation_loss", "stop.target_value=1.5", "evaluate.every_epochs=0"},
       "override 'evaluate.every_epochs=0': stop.target_metric is validation_loss but evaluation is off, expected "
       "evaluate.every_epochs or evaluate.every_steps"},
      {good,
       {"optimizer.schedule_free=true"},
       "override 'optimizer.schedule_free=true': optimizer.schedule_free is true but optimizer.kind is adam; "
       "optimizer.schedule_free may be set only with sgd or adamw"},
      {good,
       {"optimizer.kind=sgd", "optimizer.schedule_free=true", "optimizer.nesterov=true"},
       "override 'optimizer.nesterov=true': optimizer.schedule_free is true and optimizer.nesterov is true, expected "
       "only one of them"},
      {good,
       {"optimizer.kind=sgd", "optimizer.schedule_free=true", "optimizer.adascale=true"},
       "override 'optimizer.adascale=true': optimizer.schedule_free is true and optimizer.adascale is true, expected "
       "only one of them"},
      {good,
       {"optimizer.kind=sgd", "optimizer.schedule_free=true", "optimizer.momentum=0"},
       "override 'optimizer.momentum=0': optimizer.schedule_free is true but optimizer.momentum is 0, expected a value "
       "above 0: it is the weight of the average"},
      {good,
       {"optimizer.kind=adamw", "optimizer.beta1=0", "optimizer.schedule_free=true"},
       "override 'optimizer.schedule_free=true': optimizer.schedule_free is true but optimizer.beta1 is 0, expected a "
       "value above 0: it is the weight of the average"},
      {good,
       {"optimizer.kind=adamw", "optimizer.schedule_free=true", "learning_rate.schedule=cosine"},
       "override 'learning_rate.schedule=cosine': optimizer.schedule_free is true but learning_rate.schedule is "
       "cosine, "
       "expected constant: the averaging replaces the schedule"},
      {good,
       {"optimizer.kind=sgd", "optimizer.schedule_free=true", "model.kind=resnet"},
       "override 'model.kind=resnet': optimizer.schedule_free evaluates averaged weights, whose batch norm has seen no "
       "sample, but evaluate.norm_statistics is running, expected evaluate.norm_statistics: recomputed"},
      {good,
       {"optimizer.kind=muon", "optimizer.other_kind=sgd", "optimizer.beta2=0.9"},
       "override 'optimizer.beta2=0.9': optimizer.other_kind is sgd but optimizer.beta2 is 0.9, expected 0.999: only "
       "adamw uses optimizer.beta2"},
      {good,
       {"parallel.kind=server", "optimizer.kind=muon"},
       "override 'optimizer.kind=muon': parallel.kind is server but optimizer.kind is muon, expected another "
       "optimizer: Muon needs whole matrices, and each rank has only parts of them"},
      {good,
       {"optimizer.kind=muon", "parallel.shard_state=true"},
       "override 'parallel.shard_state=true': parallel.shard_state is true but optimizer.kind is muon, expected "
       "another optimizer: Muon needs whole matrices, and each rank has only parts of them"},
      {good,
       {"optimizer.other_kind=sgd"},
       "override 'optimizer.other_kind=sgd': optimizer.other_kind is sgd but optimizer.kind is adam; "
       "optimizer.other_kind may be set only with muon"},
      {good,
       {"model.kind=resnet", "model.depth=56", "model.stem=small", "model.stride_in=1x1"},
       "override 'model.stride_in=1x1': model.stride_in is 1x1 but model.depth is 56, expected bottlenecks: "
       "model.depth 50, 101 or 152"},
      {good,
       {"model.kind=resnet", "model.depth=34", "model.stride_in=1x1"},
       "override 'model.stride_in=1x1': model.stride_in is 1x1 but model.depth is 34, expected bottlenecks: "
       "model.depth 50, 101 or 152"},
      {good,
       {"model.initial=truncated_normal"},
       "override 'model.initial=truncated_normal': model.initial is truncated_normal but model.kind is char_lstm, "
       "expected he or uniform"},
      {good,
       {"model.kind=cnn", "model.initial=uniform"},
       "override 'model.initial=uniform': model.initial is uniform but model.initial_range is 0, expected a range "
       "above 0"},
      {good,
       {"model.initial_range=0.1"},
       "override 'model.initial_range=0.1': model.initial_range is 0.1 but model.initial is he; model.initial_range "
       "may be set only with uniform"},
      {good,
       {"model.kind=resnet", "model.norm=true"},
       "override 'model.norm=true': model.norm is true but model.kind is resnet; model.norm may be set only with "
       "alexnet"},
      {good,
       {"evaluate.offset_epochs=1", "evaluate.every_epochs=0"},
       "override 'evaluate.every_epochs=0': evaluate.offset_epochs is 1 but evaluate.every_epochs is 0, expected "
       "every_epochs above 0"},
      {good,
       {"evaluate.norm_statistics=last"},
       "override 'evaluate.norm_statistics=last': evaluate.norm_statistics is last but model.kind is char_lstm, "
       "expected a model with batch norm: resnet, alexnet with model.norm, or model.normalization: batch"},
      {good,
       {"model.kind=resnet", "model.normalization=group", "evaluate.norm_statistics=last"},
       "override 'evaluate.norm_statistics=last': evaluate.norm_statistics is last but model.kind is resnet and "
       "model.normalization is group, expected a model with batch norm: resnet, alexnet with model.norm, or "
       "model.normalization: batch"},
      {good,
       {"model.kind=alexnet", "evaluate.norm_statistics=recomputed", "evaluate.norm_samples=32"},
       "override 'evaluate.norm_statistics=recomputed': evaluate.norm_statistics is recomputed but model.kind is "
       "alexnet, expected a model with batch norm: resnet, alexnet with model.norm, or model.normalization: batch"},
      {good,
       {"model.kind=resnet", "evaluate.norm_statistics=last", "model.norm_momentum=0.2"},
       "override 'model.norm_momentum=0.2': evaluate.norm_statistics is last but model.norm_momentum is 0.2, expected "
       "model.norm_momentum left out: there is no running average"},
      {good,
       {"model.kind=resnet", "evaluate.norm_statistics=recomputed"},
       "override 'evaluate.norm_statistics=recomputed': evaluate.norm_statistics is recomputed but "
       "evaluate.norm_samples is 0, expected how many training samples, a multiple of batch.worker"},
      {good,
       {"model.kind=resnet", "evaluate.norm_statistics=recomputed", "evaluate.norm_samples=40"},
       "override 'evaluate.norm_samples=40': evaluate.norm_samples is 40 but batch.worker is 16, expected a multiple "
       "of batch.worker"},
      {good, {"data.channels=2"}, "override 'data.channels=2': data.channels is 2, expected 1 or 3"},
      {good, {"run.dir=a", "run.id=b"}, "override 'run.id=b': run.dir is a and run.id is b, expected only one of them"},
  };
  for (const BadExperiment& bad : cases) EXPECT_EQ(reading_error(bad.yaml, bad.overrides), bad.what) << bad.yaml;
}

TEST(Contradictions, ABatchThatCannotChangeAsAskedIsAContradiction) {
  const auto what = [](const std::vector<std::string>& overrides) { return reading_error(good, overrides); };
  const auto expect = [&](const std::vector<std::string>& overrides, const std::string& text) {
    EXPECT_EQ(what(overrides), cat("override '", overrides.back(), "': ", text));
  };
  for (const std::string wrong : {"[0, 2]", "[3, 2], [3, 4]", "[3, 4], [4, 2]", "[3, 0.5]"})
    expect({cat("batch.schedule=[", wrong, "]")},
           cat("batch.schedule is [", wrong,
               "], expected increasing epochs above 0, with times that do not fall below "
               "1"));
  expect({"batch.schedule=[[10, 2]]"},
         "batch.schedule is [[10, 2]] but stop.epochs is 10, expected changes before the end");
  expect({"batch.schedule=[[1, 1.1]]"},
         "batch.schedule is [[1, 1.1]], and 1.1 x batch.global is 70.4, but batch.worker is 16, expected a multiple of "
         "batch.worker");
  EXPECT_EQ(what({"batch.schedule=[[1, 1.25]]"}), "no error");
  expect({"noise.small_batch=32", "batch.schedule=[[1, 1.25]]"},
         "batch.schedule is [[1, 1.25]], and 1.25 x batch.global is 80, but noise.small_batch is 32, expected a "
         "multiple of noise.small_batch");
  expect(
      {"batch.schedule=[[1, 1000000]]", "batch.global=2147483632"},
      "batch.schedule is [[1, 1000000]], and 1e+06 x batch.global is 2.14748e+15, but batch.largest is 0, expected a "
      "batch.largest");
  EXPECT_EQ(what({"batch.schedule=[[1, 3]]", "batch.largest=128"}), "no error");
  expect({"batch.schedule=[[1, 3]]", "batch.largest=136"},
         "batch.largest is 136 but batch.worker is 16, expected a multiple of batch.worker");
  expect({"batch.schedule=[[1, 3]]", "batch.largest=48"},
         "batch.largest is 48 but batch.global is 64, expected a largest batch of batch.global or more");
  expect({"batch.largest=128"},
         "batch.largest is 128 but the batch does not change, expected batch.schedule or batch.follow_noise");
  expect({"batch.schedule=[[1, 2]]", "data.order=streams"},
         "batch.schedule is [[1, 2]] but data.order is streams, expected windows: each row of the batch reads a stream "
         "of its own, so the batch cannot change");
  expect({"data.order=streams", "data.last_batch=smaller"},
         "data.last_batch is smaller but data.order is streams, expected drop: streams end together");

  const std::vector<std::string> follows = {"noise.small_batch=16", "batch.largest=256", "batch.follow_noise=1"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = follows;
    all.push_back(more);
    return all;
  };
  EXPECT_EQ(what(follows), "no error");
  expect(with("batch.schedule=[[1, 2]]"),
         "batch.follow_noise is 1 and batch.schedule is [[1, 2]], expected only one of them");
  expect(with("batch.largest=100"),
         "batch.follow_noise is 1 but batch.largest is 100, expected a largest batch of at least twice batch.global, "
         "128");
  expect(with("noise.every_steps=0"),
         "batch.follow_noise is 1 but noise.every_steps is 0, expected a noise scale that is measured");
  expect(with("noise.small_batch=0"),
         "batch.follow_noise is 1 but noise.small_batch is 0, expected a number above 0, so that the result does not "
         "depend on the number of ranks");
  expect(
      {"noise.small_batch=16", "batch.largest=256", "batch.follow_noise=1", "learning_rate.schedule=cosine",
       "stop.steps=5"},
      "batch.follow_noise is 1 but stop.steps is 5, expected stop.epochs alone: where cosine ends must not depend on "
      "the noise");
  expect({"batch.patience=5"}, "batch.patience is 5 but batch.follow_noise is 0, expected batch.follow_noise above 0");
}

TEST(Contradictions, AKeyThatMustBeEmptiedForAnotherChoiceSaysHow) {
  const auto expect = [](const std::vector<std::string>& overrides, const std::string& hint) {
    try {
      parse_experiment(good, "exp.yaml", overrides);
      ADD_FAILURE() << "no error; " << hint;
    } catch (const Error& error) {
      EXPECT_EQ(error.hint(), hint) << error.what();
    }
  };
  expect({"learning_rate.milestones=[3]", "learning_rate.schedule=cosine"},
         "Set learning_rate.milestones=[], or choose another learning_rate.schedule.");
  expect({"learning_rate.warmup_epochs=1", "learning_rate.warmup_steps=5", "learning_rate.warmup_from=zero"},
         "Set learning_rate.warmup_epochs=0 or learning_rate.warmup_steps=0.");
  expect({"optimizer.clip_norm=1", "optimizer.clip_value=2"}, "Set optimizer.clip_norm=0 or optimizer.clip_value=0.");
  expect({"run.dir=a", "run.id=b"}, "Set run.dir=\"\" or run.id=\"\".");
  expect({"batch.schedule=[[1, 2]]", "noise.small_batch=16", "batch.largest=256", "batch.follow_noise=1"},
         "Set batch.follow_noise=0 or batch.schedule=[].");
  expect({"learning_rate.schedule=step", "learning_rate.milestones=[3, 6, 12]"},
         "Set learning_rate.milestones=[3,6], or learning_rate.milestones=[] with another learning_rate.schedule.");
  expect({"learning_rate.schedule=step", "learning_rate.milestones=[12]"},
         "Set learning_rate.milestones=[5], or learning_rate.milestones=[] with another learning_rate.schedule.");
  expect({"parallel.kind=pipeline", "parallel.stages=2", "batch.micro=16", "noise.groups=kind"},
         "Set parallel.kind=ring or noise.groups=none.");
  expect({"parallel.kind=server", "parallel.servers=1", "parallel.mode=async", "parallel.backup_workers=1"},
         "Set parallel.mode=sync or parallel.backup_workers=0.");
  expect({"communication.order=fixed", "run.threads=1", "parallel.shard_state=true"},
         "Set communication.order=any or parallel.shard_state=false.");
  expect({"stop.epochs=0"}, "");  // stop.epochs is 0 by default, so no hint names the default
}

}  // namespace
}  // namespace ringtrain
