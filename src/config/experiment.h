// An experiment, as plain structs. Begin reading here: this folder (src/config) turns an experiment file into these
// structs. config/schema.cpp lists every field once, with its key, type, unit, range, default and meaning. The reader
// (reader.h), the writer and configs/README.md all use that list, so a new key needs one member here and one line
// there. contradictions.h finds keys that do not fit together. batch_plan.h divides the global batch among ranks and
// micro-batches. batch_course.h says which batch each update has, because the batch may change during a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// A change that begins at an epoch. It is a factor of the learning rate or a multiple of the batch.
struct EpochFactor {
  double epoch = 0;
  double factor = 1;
  bool operator==(const EpochFactor&) const = default;
};

// A place in a run: after a number of epochs (which may be a fraction) or after a number of steps.
struct RunPoint {
  double at = 0;
  bool in_steps = false;
  bool operator==(const RunPoint&) const = default;
};

struct ModelConfig {
  std::string kind = "char_lstm";  // char_lstm | resnet | alexnet | cnn | mlp
  std::int64_t hidden = 128;       // char_lstm: units per layer
  std::int64_t layers = 4;         // char_lstm
  double dropout = 0.1;     // char_lstm: between layers; alexnet: before its dense layers; probability of zeroing
  std::int64_t depth = 50;  // resnet: one of resnet_depths
  std::int64_t width = 64;  // resnet: channels of the first stage
  std::vector<std::int64_t> channels = {32, 64, 128};  // cnn: output channels of each convolution
  std::int64_t kernel = 3;                             // cnn: pixels per side of every kernel; odd
  std::vector<std::int64_t> widths = {};               // cnn, mlp: units of each hidden dense layer
  std::string stem = "imagenet";  // resnet: imagenet (7 x 7 / 2 and max pooling) | small (3 x 3 / 1)
  bool zero_gamma = true;         // resnet: the last norm of every block starts at 0 (Goyal et al. 2017, section 5.1)
  std::string stride_in = "3x3";  // resnet: the convolution of a bottleneck that has the stride, 3x3 | 1x1
  std::string normalization = "auto";  // resnet, cnn, mlp: auto | batch | group | none; see normalization()
  std::int64_t norm_groups = 32;       // group norm: groups of channels
  double norm_momentum = 0.1;          // batch norm: share of this step's statistics in the running ones
  bool norm = false;                   // alexnet: batch norm after every convolution
  std::string initial = "he";          // he | truncated_normal | uniform
  double initial_range = 0;            // uniform: weights lie in +-initial_range; 0: the model's own range
  double forget_bias = 0;              // char_lstm: initial bias of the forget gates; 0: like the other biases
  bool operator==(const ModelConfig&) const = default;
};

// Returns what normalises the model's layers: batch (Ioffe and Szegedy 2015), group (Wu and He 2018) or none.
inline std::string normalization(const ModelConfig& model) {
  if (model.kind == "char_lstm") return "none";
  if (model.kind == "alexnet") return model.norm ? "batch" : "none";
  if (model.normalization != "auto") return model.normalization;
  return model.kind == "resnet" ? "batch" : "none";
}
inline bool has_norms(const ModelConfig& model) {
  return normalization(model) != "none";
}
inline bool has_batch_norm(const ModelConfig& model) {
  return normalization(model) == "batch";
}

inline constexpr const char* resnet_depths = "8, 20, 32, 44, 56 or 110 (for CIFAR), or 18, 34, 50, 101 or 152";
// Returns whether a ResNet of this depth is one of those for CIFAR (He et al. 2015, section 4.2).
inline bool is_cifar_depth(std::int64_t depth) {
  return depth == 8 || depth == 20 || depth == 32 || depth == 44 || depth == 56 || depth == 110;
}
inline bool has_bottlenecks(std::int64_t depth) {
  return depth == 50 || depth == 101 || depth == 152;
}

struct DataConfig {
  std::string train;               // prefix of the shards: <prefix>-00000-of-00002.h5
  std::string validation;          // prefix of the shards; empty: no evaluation
  std::string order = "windows";   // running text: windows (shuffled) | streams (carried hidden state)
  std::int64_t sequence = 64;      // running text: characters per window; names bring their own context length
  std::string blanks = "counted";  // names: counted | masked (padding targets in the loss)
  std::int64_t image_size = 224;   // images: pixels per side that the model sees
  std::int64_t channels = 3;       // images: 3 colours, or 1 for grey
  std::int64_t resize = 256;       // images: pixels of the short side before the central crop; 0: not resized
  std::string augmentation = "random_resized_crop";     // images: random_resized_crop | pad_crop | none
  std::vector<double> crop_area = {0.08, 1};            // random_resized_crop: share of the image
  std::vector<double> crop_ratio = {3.0 / 4, 4.0 / 3};  // random_resized_crop: width / height
  std::int64_t pad = 4;                                 // pad_crop: black pixels on all sides
  bool flip = true;                                     // images: random horizontal flips, half of the time
  std::vector<double> mean, std;  // images, per channel of pixels / 255; empty: the data set's own
  std::int64_t train_samples = 0, validation_samples = 0, classes = 0;  // sizes the data sets must have; 0: any
  double share = 1;                                                     // the part of the training set that is used
  std::string last_batch = "drop";  // the samples at an epoch's end that fill no batch: drop | smaller
  std::int64_t loader_threads = 1;
  std::int64_t reads = 8;     // images: number of records that are read at the same time
  std::int64_t prefetch = 4;  // number of micro-batches that are prepared in advance
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t global = 0;            // samples per optimizer step; required
  std::int64_t worker = 0;            // samples per virtual worker; required
  std::int64_t micro = 0;             // samples per device pass; 0 = auto
  std::vector<EpochFactor> schedule;  // from this epoch on the batch is global x factor, but at most largest
  std::int64_t largest = 0;           // samples; 0: no limit
  double follow_noise = 0;            // while the batch is below this multiple of the noise scale, it doubles; 0: off
  std::int64_t patience = 0;          // samples during which the batch must have been below that multiple
  bool operator==(const BatchConfig&) const = default;
};

struct LossConfig {
  double label_smoothing = 0;
  bool operator==(const LossConfig&) const = default;
};

struct LossScaleConfig {
  double initial = 65536;
  std::int64_t growth_steps = 2000;  // 0: the scale stays constant
  bool operator==(const LossScaleConfig&) const = default;
};

// Each is the half-life of an average of the optimizer, in samples: it replaces the factor of the same name. 0: not
// given.
struct HalfLifeConfig {
  double momentum = 0, beta1 = 0, beta2 = 0;
  bool operator==(const HalfLifeConfig&) const = default;
};

struct OptimizerConfig {
  std::string kind = "adam";  // sgd | lars | adam | adamw | lamb | rmsprop | rmsprop_to_sgd | muon
  double momentum = 0.9;
  bool nesterov = false;
  bool rate_in_momentum = false;     // sgd: v = m v + lr g, w -= v
  bool momentum_correction = false;  // rate_in_momentum: v is scaled by lr(t) / lr(t - 1) first
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  std::string weight_decay_by = "step";                  // adamw, muon: step | sample
  std::vector<std::string> no_decay = {"norm", "bias"};  // kinds of parameters without weight decay
  double trust_coefficient = 0.001;                      // lars
  std::string lars_form = "paper";                       // paper | mlperf
  std::vector<std::string> no_trust = {"norm", "bias"};  // lars: kinds of parameters without a trust ratio
  bool trust_undecayed = false;               // lamb: whether parameters without weight decay have a trust ratio
  double transition_center = 10;              // rmsprop_to_sgd: the epoch at which both have the same weight
  double transition_length = 5;               // rmsprop_to_sgd: epochs of the transition
  double transition_rate = 0.0003;            // rmsprop_to_sgd: the learning rate of RMSprop
  std::string muon_rate = "original";         // muon: original | match_rms_adamw
  std::string other_kind = "adamw";           // muon: adamw | sgd, for parameters that are not hidden matrices
  double other_rate = 1;                      // muon: learning rate of other_kind / learning rate of the run
  bool schedule_free = false;                 // sgd, adamw: Defazio et al. 2024
  bool adascale = false;                      // sgd: AdaScale
  double clip_norm = 0;                       // 0 = off
  double clip_value = 0;                      // limit of each element; 0 = off
  std::int64_t record_trust_every_steps = 0;  // 0 = off
  HalfLifeConfig half_life = {};
  bool operator==(const OptimizerConfig&) const = default;
};

struct AverageConfig {
  double half_life = 0;   // samples; 0: no average of the weights
  double from_epoch = 0;  // before this epoch the average is the weights themselves
  bool evaluate = true;   // whether the average is evaluated, exported and saved as the weights
  bool operator==(const AverageConfig&) const = default;
};

struct LearningRateConfig {
  double base = 0.001;           // learning rate at base_batch
  std::int64_t base_batch = 0;   // 0 = batch.global, so that no scaling happens
  std::string scaling = "none";  // none | linear | sqrt | legw | adam_sde
  double warmup_epochs = 0;
  std::int64_t warmup_steps = 0;      // instead of warmup_epochs
  std::string warmup_from = "base";   // base | zero
  std::string schedule = "constant";  // constant | step | polynomial | cosine | exponential | points
  std::vector<double> milestones;     // epochs, for step
  std::vector<EpochFactor> points;    // for points: factors of the peak, joined by straight lines
  std::string every = "step";         // how often the rate changes: step | epoch
  double factor = 0.1;                // step: at each milestone; exponential: per epoch
  double power = 2;                   // polynomial
  double end = 0;                     // polynomial, cosine: the rate at the end
  bool operator==(const LearningRateConfig&) const = default;
};
// Returns whether the schedule is a decay that reaches `end` at the last step, which must therefore be known.
inline bool decays_to_end(const LearningRateConfig& config) {
  return config.schedule == "polynomial" || config.schedule == "cosine";
}

struct NoiseConfig {
  std::int64_t every_steps = 1;  // 0: off
  std::int64_t small_batch = 0;  // samples; 0: one micro-batch
  std::int64_t half_life = 0;    // samples; 0: 100 x batch.global
  std::string groups = "none";   // groups of parameters with their own noise scale: none | kind | tensor
  bool operator==(const NoiseConfig&) const = default;
};

struct BranchConfig {
  std::string from;          // a checkpoint of another run; empty: the run begins by itself
  double batch_factor = 1;   // batch.global / batch.global of the source
  double rate_factor = 1;    // multiplies the learning rate
  std::int64_t samples = 0;  // the branch ends after this number of samples; 0: stop.* alone decides
  bool operator==(const BranchConfig&) const = default;
};

struct StopConfig {
  double epochs = 0;
  std::int64_t steps = 0;
  double seconds = 0;
  double diverged_share = 0.25;  // a run ends when its loss has been above the first one for this share of it; 0: never
  std::string target_metric;     // "" | validation_loss | validation_accuracy
  double target_value = 0;
  bool operator==(const StopConfig&) const = default;
};

struct EvaluateConfig {
  double every_epochs = 1;
  double offset_epochs = 0;  // epochs before the first evaluation of every_epochs; 0: every_epochs
  std::int64_t every_steps = 0;
  std::string norm_statistics = "running";  // batch norm: running | recomputed | last
  std::int64_t norm_samples = 0;            // recomputed: number of training samples that are used
  bool operator==(const EvaluateConfig&) const = default;
};

struct CheckpointConfig {
  double every_epochs = 1;
  std::int64_t every_steps = 0;
  double every_seconds = 0;
  std::int64_t keep = 2;
  std::vector<RunPoint> keep_at;  // checkpoints that keep never removes
  bool best = true;
  bool operator==(const CheckpointConfig&) const = default;
};

struct MachineConfig {
  std::string device = "auto";  // auto | cpu | cuda
  std::string plan_cache;       // folder; empty: under the user's cache folder
  double search_seconds = 60;   // the longest time for timing fusions at the first start; 0: no timing
  bool graphs = true;           // CUDA graphs
  bool operator==(const MachineConfig&) const = default;
};

struct CommunicationConfig {
  std::string library = "auto";                      // auto | nccl | mpi: how vectors of GPUs are summed
  std::string algorithm = "auto";                    // auto | ring; nccl: tree; mpi: halving | hierarchical | mpi
  std::string order = "any";                         // any | fixed: the same bits on any number of ranks
  std::string gradient_type = "fp32";                // nccl: fp32 | bf16 | fp16
  std::int64_t max_ctas = 0;                         // nccl: thread blocks that NCCL may use; 0: NCCL chooses
  double bucket_mib = 0;                             // size of a gradient bucket; 0: bucket_elements()
  std::int64_t chunk_kib = 128;                      // messages of sums by MPI
  double node_latency_us = 1, node_gb_s = 5;         // messages between ranks of a node, for algorithm auto
  double network_latency_us = 2, network_gb_s = 12;  // between nodes
  double timeout_seconds = 600;                      // a step that takes longer ends the job
  std::int64_t check_every_steps = -1;  // how often the ranks' copies are compared; 0: never; -1: once a minute
  bool operator==(const CommunicationConfig&) const = default;
};

struct ParallelConfig {
  std::string kind = "ring";                 // ring | server | pipeline
  bool shard_state = false;                  // ring: ZeRO stage 1
  std::int64_t servers = 1;                  // server: ranks that hold the weights
  std::string mode = "sync";                 // server: sync | async
  std::int64_t max_staleness = -1;           // async: steps that a worker may be ahead of the slowest; -1: any number
  std::string staleness_rate = "none";       // async: none | inverse
  std::string replay;                        // async: a recorded order of arrival; empty: none
  std::int64_t backup_workers = 0;           // sync: gradients that a step does not wait for
  std::int64_t stages = 2;                   // pipeline
  std::vector<std::string> cuts = {"auto"};  // pipeline: auto, or the first layer of each stage after the first
  std::string schedule = "1f1b";             // pipeline: gpipe | 1f1b
  bool operator==(const ParallelConfig&) const = default;
};
// Returns whether the parameter servers have ranks of their own, because the workers have no common step.
inline bool has_server_ranks(const ParallelConfig& parallel) {
  return parallel.kind == "server" && (parallel.mode == "async" || parallel.backup_workers > 0);
}
// Returns whether the parameter servers are workers too.
inline bool servers_work(const ParallelConfig& parallel) {
  return parallel.kind == "server" && !has_server_ranks(parallel);
}

struct MemoryConfig {
  std::vector<std::string> recompute = {"none"};  // none, auto, or names of blocks
  bool offload = false;                           // GPU: activations are copied to the host and back
  double limit_gib = 0;                           // limit of each rank; 0: the GPU's memory, and no limit on CPUs
  bool operator==(const MemoryConfig&) const = default;
};

struct TestConfig {
  std::int64_t slow_rank = -1;      // -1: none
  double slow_seconds = 0;          // sleep of the slow rank in each step
  std::int64_t flip_bit_rank = -1;  // -1: none
  std::int64_t flip_bit_step = 0;   // a bit of the rank's copy flips after this step
  std::string flip_bit_in;          // the tensor with the bit, named as in checkpoints
  bool operator==(const TestConfig&) const = default;
};

struct RunConfig {
  std::string dir;                   // the run's own folder; empty: results/<name>/<id>
  std::string id;                    // empty: the time of the start
  std::int64_t log_every_steps = 0;  // steps between lines of the log; 0 = about twenty lines per epoch
  std::int64_t threads = 0;          // per rank; 0 = its share of the affinity mask
  bool operator==(const RunConfig&) const = default;
};

struct Experiment {
  std::string name;  // required
  std::uint64_t seed = 1;
  std::string precision = "fp32";  // fp32 | tf32 | bf16 | fp16
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  LossConfig loss;
  LossScaleConfig loss_scale;
  OptimizerConfig optimizer;
  AverageConfig average;
  LearningRateConfig learning_rate;
  NoiseConfig noise;
  BranchConfig branch;
  StopConfig stop;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  MachineConfig machine;
  CommunicationConfig communication;
  ParallelConfig parallel;
  MemoryConfig memory;
  TestConfig test;
  RunConfig run;
  bool operator==(const Experiment&) const = default;
};

// Returns whether the run continues from another run's checkpoint with a multiple of its batch (batch_course.h).
inline bool is_branch(const Experiment& experiment) {
  return !experiment.branch.from.empty();
}

}  // namespace ringtrain
