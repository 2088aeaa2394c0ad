#include "bench/node_load.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "backend/backend.h"
#include "backend/cpu/processor.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/system_limits.h"
#include "bench/synthetic_step.h"
#include "cluster/binding.h"
#include "cluster/waiting.h"

namespace ringtrain {

namespace {

bool on_all(Communicator& host, bool mine) {
  double without = mine ? 0 : 1;
  host.sum(std::span(&without, 1));
  return without == 0;
}

// Binds all threads of this process to the CPUs, including those of OpenMP.
void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    sched_setaffinity(std::stoi(thread.path().filename()), sizeof set, &set);
}

}  // namespace

NodeLoad::NodeLoad(const Session& session, Communicator& host, const RunPlan& plan, int threads,
                   std::int64_t bytes_each) {
  const std::optional<HostMemory> memory = host_memory();
  const std::int64_t free_bytes = memory ? memory->available : 0;
  const std::int64_t fit = free_bytes / 2 / session.node_size() / std::max<std::int64_t>(1, bytes_each);
  const int room = session.available_threads() / std::max(1, threads) - 1;
  const int count = fit < room ? 0 : room;  // a partial load would show little
  is_there_ = !on_all(host, count < 1);
  const auto load = [this, &plan, threads] {
    try {
      cpu::expect_threads(threads);
      const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
      SyntheticPasses passes(plan, *backend, plan.batch.micro_batch);
      for (++started_; !ending_.load(std::memory_order_relaxed);) passes.pass();
    } catch (const std::exception& e) {  // too little memory for all threads, so fewer run
      log_warning("a thread that keeps the other cores busy during the measurement has failed: ", e.what());
      ++started_;
    }
  };
  try {
    while (std::ssize(threads_) < count) threads_.push_back(start_thread("keeps the other cores busy", load));
  } catch (...) {
    end();
    throw;
  }
  while (started_ < count) std::this_thread::yield();
}

NodeLoad::~NodeLoad() {
  end();
}

void NodeLoad::end() {
  ending_ = true;
  for (std::thread& thread : threads_) thread.join();
}

std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of) {
  const std::set<int> cores(core_of.begin(), core_of.end());
  if (cores.size() % 2 != 0) return {};
  const std::set<int> kept(cores.begin(), std::next(cores.begin(), static_cast<std::ptrdiff_t>(cores.size() / 2)));
  std::vector<int> half;
  for (std::size_t i = 0; i < cpus.size(); ++i)
    if (kept.contains(core_of[i])) half.push_back(cpus[i]);
  return half;
}

SharedCores::SharedCores(const Session& session, Communicator& host) : own_(own_cpus()) {
  const std::vector<std::string> of_node = session.job().gather_on_node(cpu_list(own_));
  std::vector<int> shared;
  if (of_node.size() % 2 == 0 && !session.oversubscribed()) {
    const std::size_t first = static_cast<std::size_t>(session.node_rank()) / 2 * 2;
    std::set<int> cpus;
    for (const std::string& text : {of_node[first], of_node[first + 1]})
      for (const int cpu : parse_cpu_list(text)) cpus.insert(cpu);
    const std::vector<int> both(cpus.begin(), cpus.end());
    std::vector<int> core_of;
    for (const int cpu : both) core_of.push_back(cores_of({cpu}).front());
    shared = half_of_cores(both, core_of);
  }
  are_shared_ = on_all(host, !shared.empty());
  if (!are_shared_) return;
  bind_to(shared);
  node_is_oversubscribed.store(true, std::memory_order_relaxed);
}

SharedCores::~SharedCores() {
  if (!are_shared_) return;
  node_is_oversubscribed.store(false, std::memory_order_relaxed);
  bind_to(own_);
}

}  // namespace ringtrain
