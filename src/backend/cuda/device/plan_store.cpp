#include "backend/cuda/device/plan_store.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "backend/cuda/device/device.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/rounding.h"
#include "base/system_limits.h"
#include "base/text.h"

namespace ringtrain::cuda {
namespace {

constexpr int repetitions = 5;
constexpr std::int64_t alignment = 256;   // bytes
constexpr std::size_t most_threads = 16;  // one compilation uses a few hundred MiB
constexpr int most_setting = 16;
constexpr double least_logged_seconds = 1;  // building that took less is not worth a line

std::optional<int> candidates_setting() {
  const char* text = std::getenv("RINGTRAIN_PLAN_CANDIDATES");
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != '\0' || count < 1 || count > most_setting)
    throw Error(cat("RINGTRAIN_PLAN_CANDIDATES is '", text, "'; expected a number from 1 to ", most_setting),
                "It is how many of cuDNN's plans of an operation are timed; 1: none, the first is taken.");
  return static_cast<int>(count);
}

const char* const before_version = "-cudnn-";

std::string file_name(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
  return text;
}

bool has_plans(const std::filesystem::path& folder) {
  std::error_code failed;
  const std::filesystem::directory_iterator files(folder, failed);
  return !failed && files != std::filesystem::directory_iterator();
}

}  // namespace

// Writes one line for each plan, then the plan's bytes. The line has the key, the number of timed plans, the number of
// bytes and the answer, with tabs between them.
std::string pack(const PackedPlans& plans) {
  std::string text;
  for (const auto& [key, answer] : plans)
    text += cat(key, '\t', answer.timed, '\t', answer.bytes.size(), '\t', to_line(answer, '\t'), '\n') + answer.bytes;
  return text;
}

PackedPlans unpack(const std::string& text) {
  PackedPlans plans;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;) {
    const std::vector<std::string> parts = split(text.substr(at, end - at), '\t', 4);
    at = end + 1;
    int timed = 0;
    std::size_t bytes = 0;
    if (parts.size() != 4 || !read_number(parts[1], timed) || !read_number(parts[2], bytes) || bytes > text.size() - at)
      break;
    try {
      PlanAnswer answer = parse_answer(parts[3], '\t');
      answer.timed = timed;
      answer.bytes = text.substr(at, bytes);
      plans[parts[0]] = std::move(answer);
    } catch (const Error&) {
      break;
    }
    at += bytes;
  }
  return plans;
}

std::filesystem::path plan_folder(const std::string& cache, const std::string& gpu, const std::string& cudnn_version) {
  if (cache.empty()) return {};
  return std::filesystem::path(cache) / file_name(cat(gpu, before_version, cudnn_version));
}

std::filesystem::path plan_file(const std::filesystem::path& folder, std::uint64_t graph_hash) {
  return folder / cat(std::hex, graph_hash, ".plan");
}

std::optional<PlanAnswer> kept_plan(const std::filesystem::path& file, const DnnOperation& operation) {
  PackedPlans kept = unpack(file_text(file.string()));
  const auto own = kept.find(operation.key());
  if (own == kept.end()) return std::nullopt;
  return std::move(own->second);
}

bool keep_plan(const std::filesystem::path& file, const DnnOperation& operation, const PlanAnswer& answer) {
  return replace_cache_file(file.string(), pack({{operation.key(), answer}}));
}

std::string note_about_other_versions(const std::filesystem::path& folder) {
  if (folder.empty() || has_plans(folder)) return {};
  const std::string name = folder.filename().string(), stem = name.substr(0, name.rfind(before_version));
  std::string others;
  std::error_code failed;
  for (const auto& other : std::filesystem::directory_iterator(folder.parent_path(), failed)) {
    const std::string found = other.path().filename().string();
    if (found.rfind(stem + before_version, 0) == 0 && has_plans(other.path()))
      others += cat(others.empty() ? "" : " and ", found.substr(stem.size() + std::string(before_version).size()));
  }
  if (others.empty()) return {};
  return cat(folder.parent_path().string(), " keeps plans for cuDNN ", others, ", and this is cuDNN ",
             name.substr(stem.size() + std::string(before_version).size()), ": plans are built again");
}

PlanStore::PlanStore(Device& device, std::unique_ptr<PlanMaker> maker, MakeMaker of_thread,
                     std::filesystem::path folder)
    : device_(device),
      maker_(std::move(maker)),
      of_thread_(std::move(of_thread)),
      folder_(std::move(folder)),
      setting_(candidates_setting()) {}
PlanStore::~PlanStore() = default;

const DnnPlan* PlanStore::find(const DnnOperation& operation, std::string* why) {
  const Known& found = known(operation);
  if (why != nullptr) *why = found.why;
  return found.plan.get();
}

PlanStore::Known& PlanStore::known(const DnnOperation& operation) {
  const std::string key = operation.key();
  if (const auto place = known_.find(key); place != known_.end()) return place->second;
  return known_[key] = make(operation);
}

// Takes the plan of the earlier run, or of the cache, or the one that cuDNN proposes now, in this order.
PlanStore::Known PlanStore::make(const DnnOperation& operation) {
  Known made;
  if (const auto taken = taken_.find(operation.key()); taken != taken_.end()) {
    made.settled = load(operation, taken->second, made);
    if (made.settled) return made;
    if (!std::exchange(said_, true))
      log_warning("cuDNN does not take a kept plan of '", operation.key(), "': plans like this are searched again");
  }
  if (const std::optional<PlanAnswer> kept = cached(operation); kept && load(operation, *kept, made)) return made;
  const auto prepared = prepared_.find(operation.key());
  if (prepared != prepared_.end() && prepared->second.answers.empty()) {
    made.why = prepared->second.why;
  } else if (prepared == prepared_.end() || !load(operation, prepared->second.answers.front(), made)) {
    std::vector<std::unique_ptr<DnnPlan>> built = maker_->build(operation, 1, &made.why);
    if (!built.empty()) made.plan = std::move(built.front()), made.why.clear();
  }
  if (const auto answer = answer_of(operation.key(), made)) keep(operation, *answer);
  return made;
}

bool PlanStore::load(const DnnOperation& operation, const PlanAnswer& answer, Known& known) {
  if (answer.found) {
    known.plan = maker_->load(operation, answer);
    if (known.plan == nullptr) return false;
  }
  known.why = answer.why;
  known.timed = answer.timed;
  return true;
}

PlanStore::Candidates PlanStore::candidates(PlanMaker& maker, const DnnOperation& operation, std::size_t most) {
  Candidates found;
  for (const auto& plan : maker.build(operation, most, &found.why)) found.answers.push_back(maker.packed(*plan));
  return found;
}

bool PlanStore::is_settled(const DnnOperation& operation, int most) const {
  if (known_.contains(operation.key()) || prepared_.contains(operation.key()) || taken_.contains(operation.key()))
    return true;
  const std::optional<PlanAnswer> kept = cached(operation);
  return kept && (!kept->found || most == 1 || kept->timed >= most);
}

void PlanStore::prepare(std::span<const DnnOperation> operations, int most, const std::function<bool()>& stop) {
  if (most > 1) most = setting_.value_or(most);
  std::vector<const DnnOperation*> wanted;
  std::set<std::string> keys;
  for (const DnnOperation& operation : operations)
    if (keys.insert(operation.key()).second && !is_settled(operation, most)) wanted.push_back(&operation);
  std::atomic<std::size_t> next = 0, begun = 0;
  std::size_t built = 0;
  std::mutex writing;
  const auto next_operation = [&] { return stop && stop() ? wanted.size() : next++; };
  const auto work = [&](PlanMaker& maker) {
    for (std::size_t i = next_operation(); i < wanted.size(); i = next_operation()) try {
        ++begun;
        Candidates found = candidates(maker, *wanted[i], static_cast<std::size_t>(most));
        const std::lock_guard lock(writing);
        write_first(maker, *wanted[i], found);
        built += found.answers.size();
        prepared_[wanted[i]->key()] = std::move(found);
      } catch (const std::exception&) {  // find() asks again and reports the error
      }
  };
  const double begin = now_seconds();
  std::vector<std::thread> others;
  const std::size_t threads = std::min({wanted.size(), static_cast<std::size_t>(usable_cpus()), most_threads});
  const auto help = [&] {
    try {
      work(*of_thread_());
    } catch (const std::exception&) {  // this thread could not make a PlanMaker; the other threads do its work
    }
  };
  while (others.size() + 1 < threads) try {
      others.push_back(start_thread("builds cuDNN's plans", help));
    } catch (const Error& e) {
      log_warning(e.what(), "; the other threads do its work");
      break;
    }
  work(*maker_);
  for (std::thread& thread : others) thread.join();
  const double seconds = now_seconds() - begin;
  const std::size_t left_out = wanted.size() - begun;
  if (seconds < least_logged_seconds && left_out == 0) return;
  const double tenths = std::round(10 * seconds) / 10,
               rate = std::round(10 * static_cast<double>(built) / seconds) / 10;
  log_info("cuDNN built ", built, " plans in ", tenths, " s (", rate, " plans/s, ", others.size() + 1, " threads)",
           left_out == 0 ? "" : cat("; ", left_out, " operations were not reached by the deadline"));
}

void PlanStore::write_first(PlanMaker& maker, const DnnOperation& operation, const Candidates& found) const {
  if (folder_.empty()) return;
  const std::filesystem::path file = plan_file(folder_, maker.graph_hash(operation));
  if (kept_plan(file, operation)) return;  // it may have been timed
  keep_plan(file, operation, found.answers.empty() ? PlanAnswer{.why = found.why} : found.answers.front());
}

double PlanStore::tune(const DnnOperation& operation, int most) {
  most = setting_.value_or(most);
  Known& now = known(operation);
  if (most < 2 || now.plan == nullptr || now.settled || now.timed >= most) return 0;
  const std::string key = operation.key();
  std::vector<std::unique_ptr<DnnPlan>> plans;
  if (const auto prepared = prepared_.find(key); prepared != prepared_.end())
    for (const PlanAnswer& answer : prepared->second.answers) {
      if (std::ssize(plans) < most)
        if (auto plan = maker_->load(operation, answer)) plans.push_back(std::move(plan));
    }
  if (plans.empty()) plans = maker_->build(operation, static_cast<std::size_t>(most), nullptr);
  prepared_.erase(key);
  double spent = 0;
  if (plans.size() > 1) {
    const std::vector<double> seconds = time_plans(device_, plans, spent);
    if (seconds.empty()) return spent;
    std::size_t best = plans.size();
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (seconds[i] >= 0 && (best == plans.size() || seconds[i] < seconds[best])) best = i;
    if (best == plans.size()) return spent;
    retired_.push_back(std::exchange(now.plan, std::move(plans[best])));
  }
  now.timed = most;
  if (const auto answer = answer_of(key, now)) keep(operation, *answer);
  return spent;
}

// Returns no value when cuDNN cannot serialise the plan. Every start then searches for a plan again.
std::optional<PlanAnswer> PlanStore::answer_of(const std::string& key, const Known& known) {
  PlanAnswer answer;
  answer.why = known.why;
  if (known.plan != nullptr) try {
      answer = maker_->packed(*known.plan);
    } catch (const Error& e) {
      log_warning("the plan of '", key, "' cannot be kept: ", e.what());
      return std::nullopt;
    }
  answer.timed = known.timed;
  return answer;
}

PackedPlans PlanStore::packed() {
  prepared_.clear();  // packed() is called after the search
  PackedPlans plans;
  for (const auto& [key, known] : known_)
    if (auto answer = answer_of(key, known)) plans[key] = std::move(*answer);
  return plans;
}

void PlanStore::take(PackedPlans plans) {
  taken_.merge(std::move(plans));
}

std::optional<PlanAnswer> PlanStore::cached(const DnnOperation& operation) const {
  if (folder_.empty()) return std::nullopt;
  return kept_plan(plan_file(folder_, maker_->graph_hash(operation)), operation);
}

void PlanStore::keep(const DnnOperation& operation, const PlanAnswer& answer) const {
  if (!folder_.empty()) keep_plan(plan_file(folder_, maker_->graph_hash(operation)), operation, answer);
}

std::vector<double> time_plans(Device& device, std::span<const std::unique_ptr<DnnPlan>> plans, double& spent) {
  if (plans.empty() || device.time([](Stream) {}, 1) < 0) return {};
  const DnnOperation& operation = plans.front()->operation();
  const std::vector<DnnTensor> tensors = operation.tensors();
  std::int64_t bytes = 0, workspace = 0;
  for (const auto& plan : plans) workspace = std::max(workspace, plan->workspace_bytes());
  for (const DnnTensor& tensor : tensors) bytes += round_up(tensor.elements() * bytes_of(tensor.type), alignment);
  DeviceMemory scratch;
  try {
    scratch = DeviceMemory(device, bytes + round_up(workspace, alignment), cat("timing ", operation.key()));
  } catch (const Error& e) {
    log_warning(e.what(), "; cuDNN's first plan is taken");
    return {};
  }
  std::vector<void*> addresses;
  float alpha = 1;
  char* at = scratch.data<char>();
  for (const DnnTensor& tensor : tensors) {
    addresses.push_back(tensor.role == DnnRole::alpha ? static_cast<void*>(&alpha) : at);
    fill_random(device, at, tensor.elements() * bytes_of(tensor.type), tensor.type, device.compute_stream());
    at += round_up(tensor.elements() * bytes_of(tensor.type), alignment);
  }
  std::vector<double> seconds;
  const double begin = now_seconds();
  for (const auto& plan : plans) try {
      seconds.push_back(device.time([&](Stream stream) { device.run(*plan, addresses, at, stream); }, repetitions));
    } catch (const Error& e) {
      if (!device.why_unusable().empty()) throw;
      log_warning("the plan ", plan->engine(), " of '", operation.key(), "' does not run: ", e.what());
      seconds.push_back(-1);
    }
  spent += now_seconds() - begin;
  return seconds;
}

}  // namespace ringtrain::cuda
