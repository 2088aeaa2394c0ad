// An experiment, as plain structs. Begin reading here: this folder (src/config) turns an experiment file into these
// structs. config/schema.cpp explains every key: its type, unit, range, meaning, and what 0 or an empty value stands
// for. The reader (reader.h), the writer and configs/README.md all use that list, so a new key needs one member here,
// with its default, and one line there. contradictions.h finds keys that do not fit together. batch_plan.h divides the
// global batch among ranks and micro-batches. batch_course.h says which batch each update has, because the batch may
// change during a run.
//
// The comments of the members say what the schema lacks, and what holds after reading.
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
  std::string kind = "char_lstm";
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  double dropout = 0.1;
  std::int64_t depth = 50;  // one of resnet_depths
  std::int64_t width = 64;
  std::vector<std::int64_t> channels = {32, 64, 128};
  std::int64_t kernel = 3;
  std::vector<std::int64_t> widths = {};
  std::string stem = "imagenet";
  bool zero_gamma = true;
  std::string stride_in = "3x3";
  std::string normalization = "auto";  // see normalization()
  std::int64_t norm_groups = 32;
  double norm_momentum = 0.1;
  bool norm = false;
  std::string initial = "he";
  double initial_range = 0;
  double forget_bias = 0;
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
  std::string train;
  std::string validation;
  std::string order = "windows";
  std::int64_t sequence = 64;
  std::string blanks = "counted";
  std::int64_t image_size = 224;
  std::int64_t channels = 3;
  std::int64_t resize = 256;
  std::string augmentation = "random_resized_crop";
  std::vector<double> crop_area = {0.08, 1};            // two numbers, the smaller one first
  std::vector<double> crop_ratio = {3.0 / 4, 4.0 / 3};  // two numbers, the smaller one first
  std::int64_t pad = 4;
  bool flip = true;
  std::vector<double> mean, std;  // of the same length
  std::int64_t train_samples = 0, validation_samples = 0, classes = 0;
  double share = 1;
  std::string last_batch = "drop";
  std::int64_t loader_threads = 1;
  std::int64_t reads = 8;
  std::int64_t prefetch = 4;
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t global = 0;
  std::int64_t worker = 0;  // divides global
  std::int64_t micro = 0;   // divides global
  // Epochs increase, and factors do not decrease. Each batch is a multiple of worker.
  std::vector<EpochFactor> schedule;
  std::int64_t largest = 0;
  double follow_noise = 0;
  std::int64_t patience = 0;
  bool operator==(const BatchConfig&) const = default;
};

struct LossConfig {
  double label_smoothing = 0;
  bool operator==(const LossConfig&) const = default;
};

struct LossScaleConfig {
  double initial = 65536;
  std::int64_t growth_steps = 2000;
  bool operator==(const LossScaleConfig&) const = default;
};

struct HalfLifeConfig {
  double momentum = 0, beta1 = 0, beta2 = 0;
  bool operator==(const HalfLifeConfig&) const = default;
};

struct OptimizerConfig {
  std::string kind = "adam";
  double momentum = 0.9;
  bool nesterov = false;
  bool rate_in_momentum = false;
  bool momentum_correction = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  std::string weight_decay_by = "step";
  std::vector<std::string> no_decay = {"norm", "bias"};
  double trust_coefficient = 0.001;
  std::string lars_form = "paper";
  std::vector<std::string> no_trust = {"norm", "bias"};
  bool trust_undecayed = false;
  double transition_center = 10;
  double transition_length = 5;
  double transition_rate = 0.0003;
  std::string muon_rate = "original";
  std::string other_kind = "adamw";
  double other_rate = 1;
  bool schedule_free = false;
  bool adascale = false;
  double clip_norm = 0;
  double clip_value = 0;
  std::int64_t record_trust_every_steps = 0;
  HalfLifeConfig half_life = {};
  bool operator==(const OptimizerConfig&) const = default;
};

struct AverageConfig {
  double half_life = 0;
  double from_epoch = 0;
  bool evaluate = true;
  bool operator==(const AverageConfig&) const = default;
};

struct LearningRateConfig {
  double base = 0.001;
  std::int64_t base_batch = 0;  // 0: batch_ratio() is 1
  std::string scaling = "none";
  double warmup_epochs = 0;
  std::int64_t warmup_steps = 0;
  std::string warmup_from = "base";
  std::string schedule = "constant";
  std::vector<double> milestones;   // increasing
  std::vector<EpochFactor> points;  // epochs do not decrease, and at most two are equal
  std::string every = "step";
  double factor = 0.1;
  double power = 2;
  double end = 0;
  bool operator==(const LearningRateConfig&) const = default;
};
// Returns whether the schedule is a decay that reaches `end` at the last step, which must therefore be known.
inline bool decays_to_end(const LearningRateConfig& config) {
  return config.schedule == "polynomial" || config.schedule == "cosine";
}

struct NoiseConfig {
  std::int64_t every_steps = 1;
  std::int64_t small_batch = 0;
  std::int64_t half_life = 0;
  std::string groups = "none";
  bool operator==(const NoiseConfig&) const = default;
};

struct BranchConfig {
  std::string from;
  double batch_factor = 1;
  double rate_factor = 1;
  std::int64_t samples = 0;
  bool operator==(const BranchConfig&) const = default;
};

struct StopConfig {
  double epochs = 0;
  std::int64_t steps = 0;
  double seconds = 0;
  double diverged_share = 0.25;
  std::string target_metric;
  double target_value = 0;
  bool operator==(const StopConfig&) const = default;
};

struct EvaluateConfig {
  double every_epochs = 1;
  double offset_epochs = 0;
  std::int64_t every_steps = 0;
  std::string norm_statistics = "running";
  std::int64_t norm_samples = 0;
  bool operator==(const EvaluateConfig&) const = default;
};

struct CheckpointConfig {
  double every_epochs = 1;
  std::int64_t every_steps = 0;
  double every_seconds = 0;
  std::int64_t keep = 2;
  std::vector<RunPoint> keep_at;
  bool best = true;
  bool operator==(const CheckpointConfig&) const = default;
};

struct MachineConfig {
  std::string device = "auto";
  std::string plan_cache;
  double search_seconds = 60;
  bool graphs = true;
  bool operator==(const MachineConfig&) const = default;
};

struct CommunicationConfig {
  std::string library = "auto";
  std::string algorithm = "auto";
  std::string order = "any";
  std::string gradient_type = "fp32";
  std::int64_t max_ctas = 0;
  double bucket_mib = 0;  // 0: bucket_elements() chooses
  std::int64_t chunk_kib = 128;
  double node_latency_us = 1, node_gb_s = 5;
  double network_latency_us = 2, network_gb_s = 12;
  double timeout_seconds = 600;
  std::int64_t check_every_steps = -1;
  bool operator==(const CommunicationConfig&) const = default;
};

struct ParallelConfig {
  std::string kind = "ring";
  bool shard_state = false;
  std::int64_t servers = 1;
  std::string mode = "sync";
  std::int64_t max_staleness = -1;
  std::string staleness_rate = "none";
  std::string replay;  // empty: none
  std::int64_t backup_workers = 0;
  std::int64_t stages = 2;
  std::vector<std::string> cuts = {"auto"};
  std::string schedule = "1f1b";
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
  std::vector<std::string> recompute = {"none"};
  bool offload = false;
  double limit_gib = 0;
  bool operator==(const MemoryConfig&) const = default;
};

struct TestConfig {
  std::int64_t slow_rank = -1;
  double slow_seconds = 0;
  std::int64_t flip_bit_rank = -1;
  std::int64_t flip_bit_step = 0;
  std::string flip_bit_in;
  bool operator==(const TestConfig&) const = default;
};

struct RunConfig {
  std::string dir;
  std::string id;
  std::int64_t log_every_steps = 0;
  std::int64_t threads = 0;
  bool operator==(const RunConfig&) const = default;
};

struct Experiment {
  std::string name;
  std::uint64_t seed = 1;
  std::string precision = "fp32";
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
