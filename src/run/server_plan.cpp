#include "run/server_plan.h"

#include "base/error.h"
#include "parallel/owners.h"

namespace ringtrain {
namespace {

std::int64_t share_of(std::string_view key, std::int64_t batch, int workers) {
  if (batch % workers != 0)
    throw Error(cat(key, " is ", batch, ", but ", workers, " workers share it, expected a multiple of ", workers),
                cat("Numbers of workers that divide it: ", nearest_divisors(batch, workers), "; or set another ", key));
  return batch / workers;
}

}  // namespace

std::optional<ServerPlan> server_plan(const Experiment& e, int ranks, bool on_device) {
  const ParallelConfig& p = e.parallel;
  if (p.kind != "server" || servers_work(p)) return std::nullopt;
  const bool async = p.mode == "async";
  const std::string what = async ? "parallel.mode: async" : cat("parallel.backup_workers: ", p.backup_workers);
  if (on_device)
    throw Error(cat(what, " needs servers that update parts of the weights, which only CPUs do in this version"),
                "set machine.device=cpu, or parallel.kind=ring");
  const std::int64_t servers = p.servers, workers = ranks - servers, needed = async ? 1 : p.backup_workers + 1;
  if (workers < needed)
    throw Error(
        cat(what, " has parallel.servers: ", servers, " on ranks of their own, which leaves ",
            std::max<std::int64_t>(0, workers), " of ", ranks, " ranks as workers, expected ", needed, " or more"),
        cat("start ", servers + needed, " ranks or more"));
  const ServerPlan plan{.servers = static_cast<int>(p.servers), .workers = static_cast<int>(workers), .async = async};
  share_of("batch.global", e.batch.global, plan.workers);
  return plan;
}

Experiment experiment_of_update(const Experiment& experiment, const ServerPlan& servers) {
  Experiment update = experiment;
  if (!servers.async) return update;
  update.batch.global = share_of("batch.global", experiment.batch.global, servers.workers);
  if (experiment.batch.largest > 0)
    update.batch.largest = share_of("batch.largest", experiment.batch.largest, servers.workers);
  return update;
}

std::string describe_servers(const RunPlan& plan) {
  const ServerPlan& s = *plan.servers;
  const ParallelConfig& p = plan.experiment.parallel;
  std::string text = cat(s.servers, ", and ", s.workers, s.workers == 1 ? " worker; " : " workers; ");
  if (!s.async)
    return text + cat("a step takes the first ", s.workers - p.backup_workers, " of ", s.workers,
                      " gradients; not reproducible bit for bit");
  text += cat("asynchronous, an update is ", plan.batch.global, " samples of one worker; ");
  if (p.max_staleness >= 0)
    text += cat("at most ", p.max_staleness, " steps ahead, so staleness is at most ",
                (s.workers - 1) * (2 * p.max_staleness + 1));
  else
    text += "staleness is not bounded";
  if (p.staleness_rate == "inverse") text += ", the learning rate is divided by the staleness";
  if (!p.replay.empty()) return text + cat("; the order of arrival is that of ", p.replay);
  return text +
         (s.workers == 1 ? "" : "; not reproducible bit for bit (arrivals.csv records the order for parallel.replay)");
}

}  // namespace ringtrain
