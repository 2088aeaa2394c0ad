#include "run/fitting_passes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "run/memory.h"
#include "run/passes.h"
#include "run/split.h"
#include "run/task.h"

namespace ringtrain {
namespace {

using Names = std::vector<std::string>;

// Returns the limit in bytes; 0: no limit. Without memory.limit_gib it is the memory of the GPU.
std::int64_t limit_of(const Experiment& e, const Backend& backend) {
  if (e.memory.limit_gib == 0) return backend.device_bytes();
  return static_cast<std::int64_t>(e.memory.limit_gib * (1 << 30));
}

// Returns whether memory.* leaves the micro-batch to the backend, which knows the GPU's memory too.
bool backend_chooses(const Experiment& e) {
  return e.memory.limit_gib == 0 && !chooses_recomputation(e);
}

Names all_blocks(const Graph& graph) {
  Names names;
  for (const Block& block : graph.blocks()) names.push_back(block.name);
  return names;
}

// Returns the same plan with another micro-batch and these recomputed blocks.
RunPlan with_passes(const RunPlan& p, std::int64_t micro_batch, const Names& recomputed) {
  Graph graph = p.graph;
  graph.recompute(recomputed);
  return {p, p, p, passes_of(p, p, p, graph, {micro_batch, "a trial", false})};
}

// Returns the same plan with other activations that wait in the host's memory (Graph::offload()).
RunPlan with_offload(const RunPlan& p, double stretch) {
  Graph graph = p.graph;
  graph.offload(stretch);
  return {p, p, p, passes_of(p, p, p, graph, p.micro_batch_choice)};
}

// Returns the bytes of the rank that needs most memory. The stages of a pipeline differ.
std::int64_t bytes_of(const RunPlan& p, Backend& backend) {
  std::int64_t most = 0;
  for (int stage = 0; stage < p.stages(); ++stage)
    most = std::max(most, limited_bytes(rank_memory(p, backend, stage), backend));
  return most;
}

std::int64_t bytes_with(const RunPlan& p, Backend& backend, std::int64_t micro_batch, const Names& recomputed) {
  return bytes_of(with_passes(p, micro_batch, recomputed), backend);
}

// Returns the largest micro-batch that fits, or 0 if none fits. Memory grows with the micro-batch, so the search
// compiles few programs that do not fit.
std::int64_t largest_micro_batch(const RunPlan& p, Backend& backend, std::int64_t limit, const Names& recomputed) {
  const std::vector<std::int64_t>& sizes = p.shares.micro_batches;
  const auto fits = [&](std::size_t i) { return bytes_with(p, backend, sizes[i], recomputed) <= limit; };
  if (!fits(0)) return 0;
  std::size_t good = 0, bad = 1;
  while (bad < sizes.size() && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  bad = std::min(bad, sizes.size());
  while (bad - good > 1) {
    const std::size_t middle = std::midpoint(good, bad);
    (fits(middle) ? good : bad) = middle;
  }
  return sizes[good];
}

// Returns the number of values per sample that the backward pass reads and that recomputation does not keep.
double kept_elements(const Graph& graph, const Block& block) {
  double elements = 0;
  for (std::size_t i = block.first; i <= block.last; ++i) {
    const Node& node = graph.nodes()[i];
    if (std::holds_alternative<Convolution>(node.operation) && i != block.last)
      elements += static_cast<double>(node.output.size());
    if (std::holds_alternative<Lstm>(node.operation))  // gates, cell state, dropout mask
      elements += 5.5 * static_cast<double>(graph.sequence() * node.output.size());
  }
  return elements;
}

// ---- memory.recompute: auto

using Blocks = std::vector<Block>;

bool has(const Blocks& blocks, const Block& block) {
  return std::ranges::any_of(blocks, [&](const Block& b) { return b.name == block.name; });
}

Blocks without(Blocks blocks, std::size_t skipped) {
  blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(skipped));
  return blocks;
}

// Tries which blocks of a stage must be recomputed for its pass to fit. Each trial compiles the stage's program.
class StageTrial {
 public:
  // `plan` recomputes no block.
  StageTrial(const RunPlan& plan, Backend& backend, std::int64_t limit, int stage)
      : plan_(plan),
        backend_(backend),
        limit_(limit),
        part_(part_of(plan, stage)),
        other_bytes_(limited_bytes(rank_memory(plan, backend, stage), backend) - program_bytes({})) {}

  const Graph& graph() const { return part_.graph; }
  bool fits(const Blocks& recomputed) { return other_bytes_ + program_bytes(recomputed) <= limit_; }

 private:
  std::int64_t program_bytes(const Blocks& recomputed) {
    Names names;
    for (const Block& block : recomputed) names.push_back(block.name);
    part_.graph.recompute(names);
    const auto program = compile_part(plan_, part_, backend_, PassMode::training, plan_.batch.micro_batch);
    std::int64_t bytes = 0;
    for (const MemoryItem& item : program->memory()) bytes += item.bytes;
    return bytes;
  }

  const RunPlan& plan_;
  Backend& backend_;
  std::int64_t limit_;
  ModelPart part_;
  std::int64_t other_bytes_;  // all memory of a rank apart from the training program
};

// Returns the blocks in the order of falling values per flop: what a recomputed block saves, by what it costs.
Blocks by_worth(const Graph& graph) {
  const auto worth = [&](const Block& b) { return kept_elements(graph, b) / static_cast<double>(b.flops + 1); };
  Blocks blocks = graph.blocks();
  std::ranges::stable_sort(blocks, [&](const Block& a, const Block& b) { return worth(a) > worth(b); });
  return blocks;
}

// Takes blocks in their order until the pass fits, and returns them. Returns nothing if the pass never fits.
std::optional<Blocks> first_that_fit(StageTrial& stage, const Blocks& blocks) {
  Blocks chosen;
  for (const Block& block : blocks) {
    chosen.push_back(block);
    if (stage.fits(chosen)) return chosen;
  }
  return std::nullopt;
}

// Removes each block that the pass also fits without, the dearest first.
void drop_needless(StageTrial& stage, Blocks& chosen) {
  std::ranges::stable_sort(chosen, [](const Block& a, const Block& b) { return a.flops > b.flops; });
  for (std::size_t i = 0; i < chosen.size();) {
    Blocks fewer = without(chosen, i);
    if (stage.fits(fewer))
      chosen = std::move(fewer);
    else
      ++i;
  }
}

// Replaces one block by a cheaper one, if the pass still fits. Returns whether it did.
bool replace_one(StageTrial& stage, const Blocks& by_cost, Blocks& chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i)
    for (const Block& other : by_cost) {
      if (other.flops >= chosen[i].flops || has(chosen, other)) continue;
      Blocks cheaper = chosen;
      cheaper[i] = other;
      if (!stage.fits(cheaper)) continue;
      chosen = std::move(cheaper);
      return true;
    }
  return false;
}

// Returns cheap blocks whose recomputation makes the micro-batch fit on the ranks of a stage. `trial` recomputes no
// block. The search tries some tens of sets and not all of them.
Names cheap_blocks_of_stage(const RunPlan& trial, Backend& backend, std::int64_t limit, int index) {
  StageTrial stage(trial, backend, limit, index);
  if (stage.fits({})) return {};
  const Blocks blocks = by_worth(stage.graph());
  std::optional<Blocks> chosen = first_that_fit(stage, blocks);
  if (!chosen) return all_blocks(stage.graph());
  Blocks by_cost = blocks;
  std::ranges::stable_sort(by_cost, {}, &Block::flops);
  do {
    drop_needless(stage, *chosen);
  } while (replace_one(stage, by_cost, *chosen));
  Names names;  // in the order of the model
  for (const Block& block : stage.graph().blocks())
    if (has(*chosen, block)) names.push_back(block.name);
  return names;
}

// Returns the chosen blocks of all stages.
Names cheap_blocks(const RunPlan& p, Backend& backend, std::int64_t limit, std::int64_t micro_batch) {
  const RunPlan trial = with_passes(p, micro_batch, {});
  Names names;
  for (int stage = 0; stage < p.stages(); ++stage)
    for (std::string& name : cheap_blocks_of_stage(trial, backend, limit, stage))
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  return names;
}

// ---- What memory.* chooses

// Returns the bytes in GiB, the unit of the key, rounded up.
std::string gib(std::int64_t bytes) {
  return with_digits(std::ceil(static_cast<double>(bytes) / (1 << 30) * 1e4) / 1e4);
}

[[noreturn]] void fail_to_fit(const RunPlan& p, Backend& backend, std::int64_t limit, std::int64_t micro_batch,
                              const Names& recomputed) {
  const std::int64_t needed = bytes_with(p, backend, micro_batch, recomputed);
  const std::int64_t same = largest_micro_batch(p, backend, limit, recomputed);
  const std::int64_t most = largest_micro_batch(p, backend, limit, all_blocks(p.graph));
  std::string hint;
  if (same > 0) hint = cat("the largest batch.micro that fits is ", same);
  if (most > same) hint += cat(same > 0 ? "; " : "", "with memory.recompute=auto, the largest is ", most);
  if (same == 0 && most == 0) {
    const std::int64_t least = p.shares.micro_batches.front();
    const std::int64_t bytes =
        std::min(bytes_with(p, backend, least, {}), bytes_with(p, backend, least, all_blocks(p.graph)));
    hint = cat("no batch.micro fits: the smallest, ", least, ", needs ", gib(bytes),
               p.experiment.memory.limit_gib > 0 ? " GiB; raise memory.limit_gib or take a smaller model"
                                                 : " GiB; take a smaller model");
  }
  const double stated = p.experiment.memory.limit_gib;
  throw Error(cat("a rank needs ", gib(needed), " GiB with a micro-batch of ", micro_batch, "; ",
                  stated > 0 ? cat("memory.limit_gib is ", with_digits(stated))
                             : cat("its GPU has ", gib(limit), " GiB (memory.limit_gib is not set)")),
              hint);
}

// Returns the preferred micro-batch or, if it is open and the backend does not choose one that fits, the largest.
MicroBatchChoice micro_batch_that_fits(const RunPlan& preferred, Backend& backend, std::int64_t limit) {
  const Experiment& e = preferred.experiment;
  const MicroBatchChoice& first = preferred.micro_batch_choice;
  if (!first.is_open) return first;
  const Names blocks = named_blocks(e);
  if (backend_chooses(e) && bytes_with(preferred, backend, first.samples, blocks) <= limit) return first;
  const std::int64_t largest = largest_micro_batch(preferred, backend, limit, blocks);
  // A larger micro-batch would leave a pipeline too few micro-batches to fill it.
  if (preferred.stages() > 1 && largest >= first.samples) return first;
  if (largest == 0) return {preferred.shares.micro_batches.front(), "the smallest, because no larger one fits"};
  if (largest == preferred.shares.micro_batches.back()) return {largest, reason_for_all(preferred.shares)};
  return {largest, e.memory.limit_gib > 0 ? "the largest that fits below memory.limit_gib"
                                          : "the largest that fits the GPU's memory"};
}

void check_machine(const Experiment& e, const Backend& backend) {
  if (e.memory.offload && !backend.on_device())
    throw Error("memory.offload: true on CPUs: activations lie in the host's memory already",
                "leave the key out (memory.recompute lowers the memory of a pass), or plan for a GPU with --device");
  if (chooses_recomputation(e) && limit_of(e, backend) == 0)
    throw Error("memory.recompute: auto needs to know how much memory a rank may take",
                "set memory.limit_gib, for example to the node's memory divided by its ranks");
}

}  // namespace

std::vector<std::string> recomputed_blocks(const Graph& graph) {
  Names names;
  for (const Block& block : graph.blocks())
    if (block.recomputed) names.push_back(block.name);
  return names;
}

RunPasses passes_that_fit(const RunPlan& preferred, Backend& backend) {
  const Experiment& e = preferred.experiment;
  check_machine(e, backend);
  const std::int64_t limit = limit_of(e, backend);
  if (limit == 0) return preferred;
  const MicroBatchChoice chosen = micro_batch_that_fits(preferred, backend, limit);
  const Names blocks =
      chooses_recomputation(e) ? cheap_blocks(preferred, backend, limit, chosen.samples) : named_blocks(e);
  RunPlan p = with_passes(preferred, chosen.samples, blocks);
  // If the pass does not fit otherwise, more is copied than the passes can hide.
  for (double stretch = 1.5; e.memory.offload && stretch <= 64; stretch *= 1.5) {
    if (bytes_of(p, backend) <= limit) break;
    p = with_offload(p, stretch);
  }
  if (bytes_of(p, backend) > limit) fail_to_fit(p, backend, limit, chosen.samples, blocks);
  return passes_of(p, p, p, p.graph, chosen);
}

namespace {

// Returns the operations of recomputation divided by those of a step without it. A backward pass counts as two forward
// passes. The result is an upper bound, because values that the backward pass does not read are not computed again.
double extra_flops(const Graph& graph) {
  std::int64_t again = 0;
  for (const Block& block : graph.blocks())
    if (block.recomputed) again += block.flops;
  return static_cast<double>(again) / (3 * static_cast<double>(graph.forward_flops_per_sample()));
}

std::string percent(double share) {
  return cat(with_digits(std::round(1000 * share) / 10, 4), " %");
}

std::string milliseconds(double seconds) {
  return cat(with_digits(1000 * seconds, 3), " ms");
}

// Returns a text with the bytes that a pass copies, the time of the copies, and the time of the pass.
std::string describe_offload(const RunPlan& p, Backend& backend) {
  const HostTraffic traffic =
      backend.compile(p.graph, p.batch.micro_batch, p.precision, PassMode::training, p.norm_group)->host_traffic();
  if (traffic.bytes == 0) return "nothing: the copies would take longer than the passes";
  const double waiting = std::max(0.0, traffic.out_seconds - traffic.forward_seconds) +
                         std::max(0.0, traffic.back_seconds - traffic.backward_seconds);
  return cat(readable_bytes(traffic.bytes), " of activations are moved to host memory in each pass; copies out take ",
             milliseconds(traffic.out_seconds), " of the forward pass's ", milliseconds(traffic.forward_seconds),
             ", copies back ", milliseconds(traffic.back_seconds), " of the backward pass's ",
             milliseconds(traffic.backward_seconds),
             waiting > 0 ? cat(", which wait for the copies for ", milliseconds(waiting)) : "", " (predicted)");
}

// Returns the bytes of a rank that recomputes these blocks and, if there is a limit, the largest micro-batch.
std::string describe_recomputing(const RunPlan& p, Backend& backend, std::int64_t limit, const Names& names) {
  const std::int64_t micro = p.batch.micro_batch;
  const RunPlan with = with_passes(p, micro, names);
  std::string text = cat(readable_bytes(bytes_with(p, backend, micro, names)), " with a micro-batch of ", micro, ", +",
                         percent(extra_flops(with.graph)), " of a step's flops");
  if (limit == 0) return text;
  const std::int64_t most = largest_micro_batch(p, backend, limit, names);
  return text + (most > 0 ? cat("; largest micro-batch ", most) : "; no micro-batch fits");
}

// The bytes are a linear function of the micro-batch b. Two plans determine it.
std::string describe_formula(const RunPlan& p, Backend& backend, const Names& names) {
  const std::vector<std::int64_t>& sizes = p.shares.micro_batches;
  const std::int64_t micro = p.batch.micro_batch, other = sizes.front() != micro ? sizes.front() : sizes.back();
  const double bytes = static_cast<double>(bytes_with(p, backend, micro, names));
  if (other == micro) return readable_bytes(bytes);
  const double slope =
      (bytes - static_cast<double>(bytes_with(p, backend, other, names))) / static_cast<double>(micro - other);
  return cat(readable_bytes(bytes - slope * static_cast<double>(micro)), " of model and overhead + b x ",
             readable_bytes(slope));
}

}  // namespace

std::string describe_memory_choices(const RunPlan& p, Backend& backend) {
  const Experiment& e = p.experiment;
  const std::int64_t limit = limit_of(e, backend);
  if (e.memory.recompute == Names{"none"} && e.memory.limit_gib == 0 && !e.memory.offload) return "";
  const Names all = all_blocks(p.graph), chosen = recomputed_blocks(p.graph);
  Table t;
  t.section(p.stages() == 1 ? "memory of a rank by what is kept"
                            : "memory of the fullest stage's rank by what is kept");
  if (limit > 0) t.row("limit", readable_bytes(limit));
  t.row("formula", describe_formula(p, backend, {}));
  t.row("recompute nothing", describe_recomputing(p, backend, limit, {}));
  if (e.memory.offload) {
    t.row("recompute nothing, offload nothing", describe_recomputing(with_offload(p, 0), backend, limit, {}));
    t.row("offloaded", describe_offload(p, backend));
  }
  t.row("formula, all blocks recomputed", describe_formula(p, backend, all));
  t.row("recompute all blocks", describe_recomputing(p, backend, limit, all));
  if (!chosen.empty() && chosen != all) t.row("recompute as chosen", describe_recomputing(p, backend, limit, chosen));
  t.row("chosen", chosen.empty() ? "nothing is recomputed" : joined(chosen));
  return t.str();
}

}  // namespace ringtrain
