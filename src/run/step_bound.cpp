#include "run/step_bound.h"

#include <array>
#include <span>

#include "backend/cuda/program/base.h"
#include "backend/cuda/program/schedule.h"
#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
namespace {

cuda::Rates rates_of(const RunPlan& plan, const Machine& machine) {
  return cuda::rates_of(machine.device->facts(), cuda::math_of(plan.precision));
}

RankBound bound_on_gpu(const RunPlan& plan, const Program& program, const Machine& machine) {
  const cuda::Schedule& schedule = dynamic_cast<const cuda::ProgramBase&>(program).schedule();
  const cuda::Rates rates = rates_of(plan, machine);
  const cuda::Traffic traffic = cuda::traffic_of(schedule);
  const cuda::LeastSeconds least = cuda::least_seconds_of(schedule, rates);
  const auto samples = static_cast<double>(program.micro_batch());
  return {.flops_per_sample = traffic.flops / samples,
          .bytes_per_sample = (traffic.forward_bytes + traffic.backward_bytes) / samples,
          .flops_per_second = rates.flops,
          .bytes_per_second = rates.bytes,
          .seconds_per_sample = least.pass / samples,
          .seconds_per_update = least.weights};
}

RankBound bound_on_cpu(const RunPlan& plan, const ModelPart& part, const Machine& machine) {
  const double rate = machine.backend->measure_matrix_rate(plan.precision);
  const auto flops = static_cast<double>(part.graph.training_flops_per_sample());
  return {.flops_per_sample = flops, .flops_per_second = rate, .seconds_per_sample = flops / rate};
}

}  // namespace

StepBound bound_of_sum(const RankBound& sum, std::int64_t replicas) {
  const auto copies = static_cast<double>(replicas);
  return {.ranks = static_cast<std::int64_t>(sum.ranks),
          .replicas = replicas,
          .flops_per_sample = sum.flops_per_sample / copies,
          .bytes_per_sample = sum.bytes_per_sample / copies,
          .flops_per_second = sum.flops_per_second / sum.ranks,
          .bytes_per_second = sum.bytes_per_second / sum.ranks,
          .rates = "",
          .seconds_per_sample = sum.seconds_per_sample / sum.ranks,
          .seconds_per_update = sum.seconds_per_update / sum.ranks};
}

StepBound measure_step_bound(const RunPlan& plan, const ModelPart& part, const Program& program,
                             const Machine& machine) {
  RankBound mine{.ranks = 0};
  machine.host->barrier();
  if (machine.host->rank() >= first_worker(plan))
    mine = machine.device ? bound_on_gpu(plan, program, machine) : bound_on_cpu(plan, part, machine);
  std::array sums = {mine.ranks,
                     mine.flops_per_sample,
                     mine.bytes_per_sample,
                     mine.flops_per_second,
                     mine.bytes_per_second,
                     mine.seconds_per_sample,
                     mine.seconds_per_update};
  machine.host->sum(std::span<double>(sums));
  const RankBound sum = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]};
  StepBound bound = bound_of_sum(sum, plan.servers ? plan.servers->workers : plan.batch.ranks);
  bound.rates = !machine.device                       ? "measured at the start"
                : rates_of(plan, machine).is_estimate ? "estimate"
                                                      : "of GPUs of this name";
  return bound;
}

std::string describe_least_time(const RunPlan& plan, const Program& program, const Machine& machine) {
  if (plan.stages() > 1) return "";  // a rank has a part of this program only
  const RankBound bound = bound_on_gpu(plan, program, machine);
  const cuda::Rates rates = rates_of(plan, machine);
  const double seconds =
      static_cast<double>(plan.batch.rows_per_rank) * bound.seconds_per_sample + bound.seconds_per_update;
  return cat("\nbound  the passes of a step take at least ", with_digits(1e3 * seconds), " ms with ",
             with_digits(1e-12 * rates.bytes), " TB/s and ", with_digits(1e-12 * rates.flops), " TFLOP/s",
             rates.is_estimate ? " (estimate)" : "", "\n");
}

}  // namespace ringtrain
