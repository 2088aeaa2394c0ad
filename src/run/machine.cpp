#include "run/machine.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "backend/cpu/processor.h"
#include "backend/cuda/backend.h"
#include "backend/cuda/device/described.h"
#include "backend/cuda/device/libraries.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "cluster/device_communicator.h"
#include "cluster/links.h"
#include "cluster/nccl_connection.h"
#include "cluster/sum_algorithms.h"
#include "run/folder.h"
#include "run/plan.h"
#include "run/split.h"
#include "run/start.h"

namespace ringtrain {
namespace {

constexpr std::size_t kUuidShown = 12;  // length of "GPU-1c2d3e4f"

std::string default_plan_cache() {
  const auto below = [](const char* variable, const std::string& rest) {
    const char* folder = std::getenv(variable);
    return folder != nullptr && *folder != 0 ? folder + rest : std::string();
  };
  const std::string cache = below("XDG_CACHE_HOME", "/ringtrain");
  return cache.empty() ? below("HOME", "/.cache/ringtrain") : cache;
}

// Returns whether the ranks compute on GPUs. The result is the same on all ranks.
bool takes_gpu(const MachineConfig& config, std::size_t visible, Communicator& communicator) {
  if (config.device != "auto") return config.device == "cuda";
  double with_gpu = visible > 0 ? 1 : 0;
  communicator.sum(std::span(&with_gpu, 1));
  if (with_gpu == 0) return false;
  if (with_gpu != communicator.size())
    throw Error(cat(with_gpu, " of ", communicator.size(), " ranks see a GPU, the others none"),
                "ask for GPUs on every node, or set machine.device=cpu");
  return true;
}

cuda::Type gradient_type(const std::string& name) {
  return name == "bf16" ? cuda::Type::bf16 : name == "fp16" ? cuda::Type::fp16 : cuda::Type::fp32;
}

}  // namespace

void Machine::agree_on_fusions(const std::function<void()>& compile) {
  if (!fusions) return compile();
  const bool root = host->rank() == 0;
  if (root) compile();
  fusions->load(broadcast_string(*host, fusions->text(), 0));
  plans = broadcast_string(*host, root ? device->packed_plans() : "", 0);
  if (root) return;
  device->take_plans(std::exchange(plans, ""));
  compile();
}

RunChoices Machine::choices() const {
  if (!device) return {};
  const cuda::DeviceFacts& facts = device->facts();
  return {facts.name, facts.cudnn_version, summing().record(), plans};
}

void Machine::take_choices(const std::string& fusions_of_rank_0, const RunChoices& kept) {
  if (!fusions) return;
  const std::string table = broadcast_string(*host, fusions_of_rank_0, 0);
  if (!table.empty()) fusions->load(table);
  if (host->rank() != 0 || kept.device.empty()) return;
  const cuda::DeviceFacts& facts = device->facts();
  if (kept.fit(facts)) return device->take_plans(kept.plans);
  log_info("the run's cuDNN plans are for ", kept.device, " with cuDNN ", kept.cudnn, "; this machine has ", facts.name,
           " with cuDNN ", facts.cudnn_version, ", so new plans are searched and the results may differ by rounding");
}

std::string Machine::identity() const {
  if (!device) return cpu::level_name(cpu::instruction_level());
  const cuda::DeviceFacts& facts = device->facts();
  std::string text = cat(facts.name, ", CUDA ", facts.cuda_version, ", cuDNN ", facts.cudnn_version);
  for (const auto& [what, value] : summing().record()) text += cat(", ", what, " ", value);
  return text;
}

Machine make_planning_machine(int threads, const std::string& device, const std::string& plan_cache,
                              cuda::SavedPlans* saved) {
  Machine m;
  if (device.empty()) {
    m.backend = make_cpu_backend(threads);
    return m;
  }
  const std::string cache = default_plan_cache();
  m.plan_cache = plan_cache.empty() ? cache : plan_cache;
  const cuda::DeviceDescription description = cuda::find_description(device);
  m.device = saved != nullptr ? cuda::make_saving_device(description, false, *saved)
                              : cuda::make_described_device(description, cache.empty() ? "" : cache + "/plans");
  m.fusions = std::make_unique<cuda::FusionTable>(0);
  cuda::load_kept_fusions(m.plan_cache, *m.fusions);
  m.backend = cuda::make_backend(*m.device, {.fusions = m.fusions.get()});
  return m;
}

SumChoice sum_choice(const CommunicationConfig& c) {
  const bool fixed = c.order == "fixed";
  return {.algorithm = fixed                   ? "halving"
                       : c.algorithm == "tree" ? "auto"
                                               : c.algorithm,  // check_mpi_has() refuses tree if MPI sums
          .links = {.node = stated_link(c.node_latency_us, c.node_gb_s),
                    .network = stated_link(c.network_latency_us, c.network_gb_s)}};
}

std::unique_ptr<DeviceCommunicator> make_sums(const Experiment& experiment, cuda::Device& device, Communicator& host,
                                              const RunChoices& kept) {
  const CommunicationConfig& c = experiment.communication;
  if (c.library == "mpi") {
    check_mpi_has(c.algorithm);
    return make_staged_communicator(device, host);
  }
  return make_nccl_communicator(nccl_api(), device, host,
                                {.algorithm = c.algorithm,
                                 .gradient_type = gradient_type(c.gradient_type),
                                 .kept = kept.communication,
                                 .fixed_order_elements = c.order == "fixed" ? bucket_elements(c, true, host.size()) : 0,
                                 .max_ctas = static_cast<int>(c.max_ctas),
                                 .timeout_seconds = 0.8 * c.timeout_seconds});
}

std::unique_ptr<StageRanks> make_stage_ranks(const Experiment& experiment, const RankGroup& group, cuda::Device* device,
                                             const RunChoices& kept) {
  const std::int64_t stages = stages_of(experiment.parallel);
  if (stages == 1 || group.size() % stages != 0) return nullptr;  // make_run_plan() throws in the second case
  StageDevices devices;
  if (device != nullptr) {
    devices.sums = [&](Communicator& host) { return make_sums(experiment, *device, host, kept); };
    devices.links = [&](Links& host, int rank, std::vector<Lane> lanes) {
      const CommunicationConfig& c = experiment.communication;
      if (c.library == "mpi") return make_staged_links(*device, host);
      return make_nccl_links([]() -> const NcclApi& { return nccl_api(); }, *device, host,
                             {.rank = rank, .lanes = std::move(lanes), .timeout_seconds = 0.8 * c.timeout_seconds});
    };
  }
  return std::make_unique<StageRanks>(group, static_cast<int>(stages),
                                      static_cast<std::size_t>(experiment.communication.chunk_kib) << 10,
                                      sum_choice(experiment.communication), devices);
}

Machine make_machine(const Experiment& experiment, const RankGroup& group, int threads) {
  Machine m;
  m.host = make_host_communicator(experiment, group);
  complete_machine(m, experiment, group, threads);
  return m;
}

std::unique_ptr<Communicator> make_host_communicator(const Experiment& experiment, const RankGroup& group) {
  const CommunicationConfig& c = experiment.communication;
  return make_mpi_communicator(group, static_cast<std::size_t>(c.chunk_kib) << 10, 0x7fffffff, sum_choice(c));
}

ReducedMemory reduced_memory(Communicator& sums) {
  return {[&sums](std::int64_t bytes) { return sums.allocate(bytes); },
          [&sums](void* memory) { sums.release(memory); }};
}

std::unique_ptr<Backend> make_host_backend(const Experiment& experiment, int threads, Communicator& host,
                                           StageRanks* stages) {
  Communicator& sums = stages != nullptr ? stages->over_replicas() : host;
  // Parameter servers get gradients by messages.
  const bool sums_gradients = sums.size() > 1 && experiment.parallel.kind != "server";
  cpu::expect_threads(threads);
  return make_cpu_backend(threads, sums_gradients ? reduced_memory(sums) : ReducedMemory{});
}

void complete_machine(Machine& m, const Experiment& experiment, const RankGroup& group, int threads,
                      const RunChoices& kept) {
  const CommunicationConfig& c = experiment.communication;
  const std::vector<std::string> visible =
      experiment.machine.device == "cpu" ? std::vector<std::string>() : cuda::visible_uuids();
  const bool may_share = c.library == "mpi" || nccl_may_share_devices();
  if (!takes_gpu(experiment.machine, visible.size(), *m.host)) {
    if (experiment.machine.device != "cpu") {
      // The job may have GPUs that this program cannot use. If the launcher gives several ranks the same GPU, that is
      // an error here too.
      if (!may_share) check_visible_devices(group);
      if (const char* given = std::getenv("CUDA_VISIBLE_DEVICES")) m.gpu = given;
      if (std::string why; cuda::has_driver() && cuda::find_cuda_library(&why) == nullptr)
        log_info("this machine has NVIDIA's driver, and the run is on its CPUs: ", why, " (make cuda)");
    }
    check_mpi_has(c.algorithm);
    report_lower_instruction_sets();
    m.stages = make_stage_ranks(experiment, group);
    m.backend = make_host_backend(experiment, threads, *m.host, m.stages.get());
    return;
  }

  const int ordinal = choose_device(group, visible, may_share);
  m.gpu = visible[static_cast<std::size_t>(ordinal)].substr(0, kUuidShown);
  m.plan_cache = experiment.machine.plan_cache.empty() ? default_plan_cache() : experiment.machine.plan_cache;
  m.device = cuda::make_runtime_device(ordinal, m.plan_cache);
  m.fusions = std::make_unique<cuda::FusionTable>(experiment.machine.search_seconds);
  if (m.host->rank() == 0) {
    cuda::load_kept_fusions(m.plan_cache, *m.fusions);
    cuda::keep_fusions(m.plan_cache, *m.fusions);
  }
  cuda::BackendOptions options;
  options.graphs = experiment.machine.graphs;
  options.fusions = m.fusions.get();
  m.stages = make_stage_ranks(experiment, group, m.device.get(), kept);
  options.segment_elements = bucket_elements(c, true, m.stages ? m.stages->replicas() : group.size());
  if (m.stages) {
    if (m.stages->device_sums() != nullptr) options.reduced = reduced_memory(*m.stages->device_sums());
    options.poll = [stages = m.stages.get()] { stages->poll(); };
  } else if (group.size() > 1 || c.library != "auto") {  // one rank has nothing to sum and does not need NCCL
    std::unique_ptr<DeviceCommunicator> sums = make_sums(experiment, *m.device, *m.host, kept);
    options.reduced = reduced_memory(*sums);
    options.poll = [s = sums.get()] { s->poll(); };
    m.sums = std::move(sums);
  }
  m.backend = cuda::make_backend(*m.device, std::move(options));
}

namespace {

std::string file_of(const std::string& run_dir) {
  return run_dir + "/choices";
}

// The file has the head, a line with the hash of head and plans, and the plans.
std::string text_of(const RunChoices& choices) {
  const std::string head = choices.head();
  return cat(head, '\n', fnv1a(head + choices.plans), '\n', choices.plans);
}

RunChoices of_text(const std::string& text) {
  const std::size_t head_end = text.find('\n'), hash_end = text.find('\n', head_end + 1);
  if (head_end == std::string::npos || hash_end == std::string::npos) throw Error("it is incomplete");
  const std::string head = text.substr(0, head_end), hash = text.substr(head_end + 1, hash_end - head_end - 1);
  std::string plans = text.substr(hash_end + 1);
  if (hash != cat(fnv1a(head + plans))) throw Error("its hash is not that of its contents");
  RunChoices choices = RunChoices::of_head(head);
  choices.plans = std::move(plans);
  return choices;
}

}  // namespace

std::string RunChoices::head() const {
  return Json{{"device", device}, {"cudnn", cudnn}, {"communication", communication}}.dump();
}

RunChoices RunChoices::of_head(const std::string& line) {
  RunChoices choices;
  try {
    const auto json = parse_json(line);
    if (!json.is_object()) throw Error("its first line is no JSON object");
    json.at("device").get_to(choices.device);
    json.at("cudnn").get_to(choices.cudnn);
    json.at("communication").get_to(choices.communication);
  } catch (const Json::exception&) {
    throw Error("its first line does not hold the texts 'device' and 'cudnn' and the object 'communication'");
  }
  return choices;
}

RunChoices read_choices(const std::string& run_dir) {
  const std::string path = file_of(run_dir);
  if (!std::filesystem::exists(path)) return {};
  try {
    return of_text(file_text(path));
  } catch (const Error& e) {
    log_warning(path, ": ", e.what(), "; new cuDNN plans are searched, and the results may differ by rounding");
    return {};
  }
}

void write_choices(const std::string& run_dir, const RunChoices& choices) {
  const std::string path = file_of(run_dir), text = text_of(choices);
  if (text != file_text(path)) write_file_atomically(path, text);
}

}  // namespace ringtrain
