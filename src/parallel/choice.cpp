// Chooses the Synchronizer that an experiment asks for. No other file makes this choice.
#include "base/error.h"
#include "parallel/stage_synchronizer.h"
#include "parallel/synchronizer.h"

namespace ringtrain {

std::unique_ptr<Synchronizer> make_synchronizer(const ParallelConfig& parallel, Communicator& communicator,
                                                StageRanks* stages, std::span<float> gradients, std::int64_t trained,
                                                std::int64_t bucket_elements, bool on_device) {
  if (stages != nullptr) return make_stage_synchronizer(communicator, *stages, gradients, bucket_elements, on_device);
  const std::vector<OwnedRange> all = owners(parallel, trained, bucket_elements, communicator.size());
  if (all.empty()) return make_ring_synchronizer(communicator, gradients, bucket_elements, on_device);
  const auto make = servers_work(parallel) ? make_server_synchronizer : make_sharded_synchronizer;
  return make(communicator, gradients, trained, bucket_elements, all, on_device);
}

void check_parallel(const Experiment& experiment, int ranks) {
  const ParallelConfig& p = experiment.parallel;
  const bool serves = servers_work(p);
  if (!serves && !p.shard_state) return;
  const std::string what = serves ? cat("parallel.kind is ", p.kind) : "parallel.shard_state is true";
  if (experiment.optimizer.kind == "muon")
    throw Error(
        cat(what, ", but optimizer.kind is muon, which needs whole matrices, and each rank has only parts of them"),
        "expected another optimizer.kind, or parallel.kind: ring without parallel.shard_state (Muon's work is "
        "shared out by matrices there)");
  if (serves && p.servers > ranks)
    throw Error(cat("parallel.servers is ", p.servers, ", but there ", ranks == 1 ? "is " : "are ", ranks,
                    ranks == 1 ? " rank" : " ranks", ", expected at most as many servers as ranks"),
                cat("lower parallel.servers, or start ", p.servers, " ranks"));
}

}  // namespace ringtrain
