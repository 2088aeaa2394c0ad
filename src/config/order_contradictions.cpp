#include "config/order_contradictions.h"

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

}  // namespace ringtrain
