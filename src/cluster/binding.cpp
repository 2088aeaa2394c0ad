#include "cluster/binding.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ranges>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/machine_share.h"
#include "base/text.h"
#include "cluster/rank_group.h"

namespace ringtrain {
namespace {

constexpr std::size_t kNamesShown = 4, kRanksShown = 8;

bool overlap(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return !common.empty();
}

template <class List, class Text>
std::string first_of(const List& list, const std::string& separator, std::size_t shown, const Text& text) {
  const std::string first = joined(std::views::take(list, static_cast<std::ptrdiff_t>(shown)), separator, text);
  return list.size() > shown ? cat(first, separator, "... (", list.size(), ")") : first;
}

// Joins the texts of the ranks: "0-3 | 4-7". If all texts are the same, returns the text once: "0-3 for all".
std::string per_rank(const std::vector<std::string>& texts) {
  const bool same = std::ranges::all_of(texts, [&](const std::string& t) { return t == texts.front(); });
  if (same) return texts.size() > 1 ? texts.front() + " for all" : texts.front();
  return first_of(texts, " | ", kRanksShown, [](const std::string& t) { return t.empty() ? "none" : t; });
}

using Node = std::vector<const RankBinding*>;

// Groups the ranks by node. The nodes are in the order of their first ranks.
std::vector<Node> nodes_of(const std::vector<RankBinding>& ranks) {
  std::vector<Node> nodes;
  std::map<std::string, std::size_t> place;
  for (const RankBinding& r : ranks) {
    const auto [at, is_new] = place.try_emplace(r.host, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[at->second].push_back(&r);
  }
  return nodes;
}

// Returns sets of ranks that are connected by shared cores.
std::vector<Node> groups_of(const Node& node) {
  std::vector<Node> groups;
  for (const RankBinding* rank : node) {
    Node linked = {rank};
    std::erase_if(groups, [&](const Node& group) {
      const bool meets = std::ranges::any_of(group, [&](const auto* g) { return overlap(g->cores, rank->cores); });
      if (meets) linked.insert(linked.begin(), group.begin(), group.end());
      return meets;
    });
    groups.push_back(std::move(linked));
  }
  return groups;
}

}  // namespace

std::string processor_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const auto begin = line.find(": "); begin != std::string::npos) return line.substr(begin + 2);
  return "";
}

std::vector<int> cores_of(const std::vector<int>& cpus) {
  std::set<int> cores;
  for (const int cpu : cpus) {
    std::ifstream siblings(cat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    int first = cpu;
    cores.insert(siblings >> first ? first : cpu);
  }
  return {cores.begin(), cores.end()};
}

int cpus_of_each_rank(std::size_t cpus, std::size_t cores, std::int64_t ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t own = count > cores ? cpus / count : cores / count * (cpus / cores);
  return static_cast<int>(std::max<std::size_t>(1, own));
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < cpus.size(); i = end) {
    for (end = i + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1;) ++end;
    text += cat(text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) text += cat("-", cpus[end - 1]);
  }
  return text;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string& range : split(text, ',')) {
    std::istringstream in(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(in >> first)) continue;
    if (!(in >> dash >> last)) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

double share_of_cpus(const std::vector<std::vector<int>>& cpus_of_ranks, std::size_t me) {
  std::map<int, int> users;
  for (const std::vector<int>& cpus : cpus_of_ranks)
    for (const int cpu : cpus) ++users[cpu];
  double share = 0;
  for (const int cpu : cpus_of_ranks[me]) share += 1.0 / users[cpu];
  return share;
}

std::vector<RankBinding> gather_bindings(const RankGroup& group, const std::string& gpus) {
  const std::vector<int> own = own_cpus();
  const std::vector<std::string> texts = group.gather(cat(cpu_list(own), '\n', cpu_list(cores_of(own)), '\n', gpus));
  if (group.rank() != 0) return {};
  std::vector<RankBinding> ranks(texts.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<std::string> lines = split(texts[r], '\n');
    ranks[r] = {.rank = static_cast<int>(r),
                .host = group.hosts()[r],
                .cpus = parse_cpu_list(lines[0]),
                .cores = parse_cpu_list(lines[1]),
                .gpus = lines[2]};
  }
  return ranks;
}

std::vector<std::string> describe_bindings(const std::vector<RankBinding>& ranks) {
  std::vector<std::string> kinds;
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (const Node& node : nodes_of(ranks)) {
    std::vector<std::string> cpus, gpus;
    for (const RankBinding* r : node) {
      cpus.push_back(cpu_list(r->cpus));
      gpus.push_back(r->gpus);
    }
    std::string kind = cat(node.size(), node.size() == 1 ? " rank" : " ranks", ", CPUs ", per_rank(cpus));
    if (std::ranges::any_of(gpus, [](const std::string& g) { return !g.empty(); })) kind += ", GPUs " + per_rank(gpus);
    if (!hosts_of.contains(kind)) kinds.push_back(kind);
    hosts_of[kind].push_back(node.front()->host);
  }
  std::vector<std::string> lines;
  for (const std::string& kind : kinds)
    lines.push_back(first_of(hosts_of[kind], ", ", kNamesShown, [](const std::string& h) { return h; }) + ": " + kind);
  return lines;
}

std::vector<std::string> shared_cores(const std::vector<RankBinding>& ranks) {
  std::vector<std::string> sentences;
  for (const Node& node : nodes_of(ranks))
    for (const Node& group : groups_of(node)) {
      std::set<int> cores;
      for (const RankBinding* r : group) cores.insert(r->cores.begin(), r->cores.end());
      const bool same = std::ranges::all_of(group, [&](const auto* r) { return r->cores == group.front()->cores; });
      if (same && group.size() <= cores.size()) continue;
      const std::string who = first_of(group, ", ", 4 * kRanksShown, [](const auto* r) { return cat(r->rank); });
      std::vector<std::string> masks;
      for (const RankBinding* r : group) masks.push_back(cpu_list(r->cpus));
      sentences.push_back(cat("ranks ", who, " on ", group.front()->host, " share ", cores.size(),
                              cores.size() == 1 ? " core" : " cores", " (CPUs ", per_rank(masks), ")"));
    }
  return sentences;
}

namespace {

constexpr const char* kAdvice =
    "start at most as many ranks on a node as it has GPUs (mpirun --npernode, srun --ntasks-per-node), let each rank "
    "see them (srun --gpus-per-node, and srun instead of mpirun; CUDA_VISIBLE_DEVICES), or set "
    "communication.library: mpi, which sums through host memory and lets several ranks share a GPU, or "
    "machine.device: cpu";

std::string visible_here() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text != nullptr ? cat("CUDA_VISIBLE_DEVICES=", text) : "CUDA_VISIBLE_DEVICES is not set";
}

using Takers = std::map<std::string, std::vector<int>>;

// Returns "GPU-a (rank 0), GPU-b (rank 1)".
std::string who_took(const std::vector<std::string>& uuids, const Takers& takers) {
  return joined(uuids, ", ",
                [&](const std::string& uuid) { return cat(uuid, " (rank ", takers.at(uuid).front(), ")"); });
}

[[noreturn]] void none_left(const std::vector<RankDevices>& ranks, std::size_t me, const Takers& takers,
                            const std::string& host) {
  const std::vector<std::string>& seen = ranks[me].uuids;
  const bool one_list = std::ranges::all_of(ranks, [&](const RankDevices& r) { return r.uuids == seen; });
  if (one_list)
    throw Error(
        cat(ranks.size(), " ranks on ", host, ", but ", seen.size(), seen.size() == 1 ? " device" : " devices", " (",
            visible_here(), "): rank ", ranks[me].rank, " is left without one; taken are ", who_took(seen, takers)),
        kAdvice);
  throw Error(cat("rank ", ranks[me].rank, " on ", host, " sees only devices that other ranks have taken: ",
                  who_took(seen, takers), " (", visible_here(), ")"),
              kAdvice);
}

}  // namespace

int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share) {
  Takers takers;
  for (std::size_t r = 0;; ++r) {
    const std::vector<std::string>& seen = ranks.at(r).uuids;
    if (seen.empty())
      throw Error(cat("rank ", ranks[r].rank, " on ", host, " sees no GPU (", visible_here(), ")"),
                  "ask the batch system for GPUs (srun --gpus-per-node), check nvidia-smi, or train on the CPU");
    const auto fewest = std::ranges::min_element(
        seen, {}, [&](const std::string& uuid) { return takers.contains(uuid) ? takers[uuid].size() : 0; });
    if (!may_share && takers.contains(*fewest)) none_left(ranks, r, takers, host);
    takers[*fewest].push_back(ranks[r].rank);
    if (r == static_cast<std::size_t>(node_rank)) return static_cast<int>(fewest - seen.begin());
  }
}

// Returns what the ranks of this node have given as `devices`, a list of texts with a separator between or after them.
// Collective over the group.
static std::vector<RankDevices> devices_on_node(const RankGroup& group, const std::string& devices, char separator) {
  std::vector<RankDevices> ranks;
  for (const std::string& text : group.gather_on_node(cat(group.rank(), ' ', devices))) {
    RankDevices& rank = ranks.emplace_back();
    std::istringstream in(text);
    in >> rank.rank >> std::ws;
    for (std::string device; std::getline(in, device, separator);) rank.uuids.push_back(device);
  }
  return ranks;
}

// Chooses the device of this rank. `ranks` are the group's ranks on its node.
static int choose_together(const std::vector<RankDevices>& ranks, const RankGroup& group, bool may_share) {
  // Chooses for the last rank first. If any rank gets no device, all ranks throw here, and none makes the run's folder.
  choose_device(ranks, group.node_size() - 1, group.host(), may_share);
  return choose_device(ranks, group.node_rank(), group.host(), may_share);
}

void check_visible_devices(const RankGroup& group) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<RankDevices> ranks = devices_on_node(group, visible ? visible : "", ',');
  for (RankDevices& rank : ranks) {
    if (rank.uuids.empty()) return;  // without a list, the rank sees all GPUs or none
    for (std::string& device : rank.uuids) device = "GPU " + device;
  }
  choose_together(ranks, group, false);
}

int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share) {
  return choose_together(devices_on_node(group, joined(visible_uuids, "\n"), '\n'), group, may_share);
}

bool nccl_may_share_devices() {
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return std::getenv("NCCL_HOSTID") != nullptr || (shared != nullptr && std::string(shared) == "1");
}

}  // namespace ringtrain
