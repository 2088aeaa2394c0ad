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
      {e.run.threads == 0, "run.threads", "a number: the sums within a pass depend on the threads of a rank"},
      {e.parallel.kind != "ring", "parallel.kind",
       "ring, because servers and pipelines add gradients in another order"},
      {e.parallel.shard_state, "parallel.shard_state", "false: its gradients are added around a ring"},
      {algorithm != "auto" && algorithm != "halving", "communication.algorithm",
       "auto or halving, which adds in the binary tree"},
      {e.communication.gradient_type != "fp32", "communication.gradient_type",
       "fp32: each addition would be rounded to 16 bits"},
  };
  for (const auto& [asked, key, expected] : table)
    if (asked)
      return {{{"communication.order", key},
               cat("communication.order is fixed but ", key, " is ", value_text(*find_field(key), e), ", expected ",
                   expected)}};
  return std::nullopt;
}

}  // namespace ringtrain
