#include "config/parallel_contradictions.h"

#include "base/error.h"
#include "config/schema.h"

namespace ringtrain {

std::optional<Contradiction> find_order_contradiction(const Experiment& e) {
  if (e.communication.order != "fixed") return std::nullopt;
  const std::string& algorithm = e.communication.algorithm;
  const struct {
    bool asked;
    std::string_view key, expected;
  } table[] = {
      {e.parallel.kind != "ring", "parallel.kind",
       "ring, because servers and pipelines add gradients in another order"},
      {e.parallel.shard_state, "parallel.shard_state", "false: its gradients are added around a ring"},
      {algorithm != "auto" && algorithm != "halving", "communication.algorithm",
       "auto or halving, which adds in the binary tree"},
      {e.communication.gradient_type != "fp32", "communication.gradient_type",
       "fp32: each addition would be rounded to 16 bits"},
  };
  if (e.run.threads == 0)
    return {{{"communication.order", "run.threads"},
             "communication.order is fixed but run.threads is 0 (each rank takes its share of the cores), expected a "
             "number: "
             "the sums within a pass depend on the threads of a rank",
             "Set run.threads to the number of threads of each rank, for example run.threads=1. The bits are the same "
             "on any "
             "number of ranks with that number of threads."}};
  for (const auto& [asked, key, expected] : table)
    if (asked)
      return {{{"communication.order", key},
               cat("communication.order is fixed but ", key, " is ", value_text(*find_field(key), e), ", expected ",
                   expected)}};
  return std::nullopt;
}

namespace {

// communication.algorithm names ways to sum on all ranks. Gradients take other ways to servers and to sharded state.
std::optional<Contradiction> algorithm_contradiction(const Experiment& e) {
  const std::string& algorithm = e.communication.algorithm;
  const std::string is = cat("communication.algorithm is ", algorithm, " but ");
  if (e.parallel.kind == "server" && algorithm != "auto")
    return {{{"communication.algorithm", "parallel.kind"},
             cat(is, "parallel.kind is server, expected auto: gradients are sent to the servers, which add them")}};
  if (e.parallel.shard_state && algorithm != "auto" && algorithm != "ring")
    return {{{"communication.algorithm", "parallel.shard_state"},
             cat(is,
                 "parallel.shard_state is true, expected auto or ring: each rank gets the sums of its own part around "
                 "a ring")}};
  return std::nullopt;
}

}  // namespace

std::optional<Contradiction> find_server_contradiction(const Experiment& e) {
  const ParallelConfig& p = e.parallel;
  if (auto contradiction = algorithm_contradiction(e)) return contradiction;
  const bool async = p.mode == "async";
  if (p.kind != "server" || (!async && p.backup_workers == 0)) return std::nullopt;
  const std::string_view mode = async ? "parallel.mode" : "parallel.backup_workers";
  const std::string is = cat(mode, " is ", value_text(*find_field(mode), e));
  if (async && p.backup_workers > 0)
    return {{{"parallel.mode", "parallel.backup_workers"},
             cat(is, " but parallel.backup_workers is ", p.backup_workers,
                 ", expected only one of them: an asynchronous update waits for nobody")}};
  const struct {
    bool asked;
    std::string_view key, expected;
  } table[] = {
      {e.precision == "fp16", "precision",
       "fp32 or bf16: a loss scale could change between the time when a worker gets weights and its update"},
      {e.data.order == "streams", "data.order",
       "windows: the hidden state of streams would have to pass from update to update"},
      {e.optimizer.kind == "muon", "optimizer.kind", "another optimizer: Muon needs whole matrices on every rank"},
      {e.optimizer.adascale, "optimizer.adascale", "false: servers do not see the gradients of small batches"},
      {e.batch.follow_noise > 0, "batch.follow_noise", "0: servers do not measure the noise scale"},
      {e.noise.small_batch > 0, "noise.small_batch", "0: servers do not measure the noise scale"},
      {e.noise.groups != "none", "noise.groups", "none: servers do not measure the noise scale"},
      {e.communication.check_every_steps > 0, "communication.check_every_steps",
       "-1 (these ranks compare their copies when all of them meet, at evaluations and checkpoints) or 0 (never)"},
      {!e.branch.from.empty(), "branch.from", "a run that begins by itself"},
      {p.servers > 1 && e.optimizer.record_trust_every_steps > 0, "optimizer.record_trust_every_steps",
       "0, or parallel.servers: 1: each server knows the ratios of its part only"},
  };
  for (const auto& [asked, key, expected] : table)
    if (asked)
      return {{{mode, key}, cat(is, " but ", key, " is ", value_text(*find_field(key), e), ", expected ", expected)}};
  return std::nullopt;
}

}  // namespace ringtrain
