#include "cluster/nccl_connection.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "backend/cuda/device/libraries.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cluster/session.h"
#include "cluster/waiting.h"

namespace ringtrain {

const NcclApi& nccl_api() {
  return cuda::cuda_library().nccl_api();
}

void abort_nccl(const NcclApi& api, NcclComm* comm, const std::string& why, double deadline_seconds) {
  try {
    auto ended = std::make_shared<std::promise<void>>();
    std::thread([function = api.abort, comm, ended] {
      function(comm);
      ended->set_value();
    }).detach();
    if (ended->get_future().wait_for(std::chrono::duration<double>(deadline_seconds)) == std::future_status::ready)
      return;
    std::fprintf(stderr, "ringtrain: error (%s): %s\n  NCCL did not end within %g s after that; ending the job\n",
                 rank_label(), why.c_str(), deadline_seconds);
  } catch (const std::exception& e) {  // no thread could be started
    std::fprintf(stderr, "ringtrain: error (%s): %s\n  NCCL cannot be ended: %s\n", rank_label(), why.c_str(),
                 e.what());
  }
  abort_job(1);
}

NcclConnection::~NcclConnection() {
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    abort("an error ended this rank");
    return;
  }
  try {
    if (api_.finalize(comm_) != NcclResult::success) settle("the end of NCCL");
    api_.destroy(comm_);
  } catch (const std::exception&) {  // fail() has ended NCCL, and the ranks are stopping anyway
  }
}

NcclUniqueId NcclConnection::make_id() {
  NcclUniqueId id{};
  if (const NcclResult result = api_.get_unique_id(&id); result != NcclResult::success)
    fail(cat("NCCL found no way for ranks to reach each other: ", library_says(result)),
         "set NCCL_SOCKET_IFNAME to the network interface that the nodes share; NCCL_DEBUG=INFO says what was tried");
  return id;
}

void NcclConnection::start(const NcclUniqueId& id, const std::string& what) {
  NcclConfig config;
  config.blocking = 0;
  if (end_.max_ctas > 0) config.max_ctas = end_.max_ctas;
  accept(api_.init_rank(&comm_, end_.size, id, end_.rank, &config), what);
}

std::string NcclConnection::library_says(NcclResult result) {
  const char* detail = api_.last_error(comm_);
  return cat(api_.error_text(result), detail != nullptr && *detail != '\0' ? cat(" (", detail, ")") : std::string());
}

void NcclConnection::fail(const std::string& what, const std::string& hint) {
  const Error error(cat(end_.who, ": ", what), hint);
  abort(error.what());
  throw error;
}

void NcclConnection::check(NcclResult result, const std::string& what) {
  if (result == NcclResult::success || result == NcclResult::in_progress) return;
  fail(cat(what, " failed: ", library_says(result)),
       result == NcclResult::remote_error
           ? "another rank has ended or the network between the nodes broke; look for the first message above"
           : "NCCL_DEBUG=WARN says more");
}

void NcclConnection::settle(const std::string& what) {
  const double begin = now_seconds();
  for (Waiter waiter; look(what) == NcclResult::in_progress; waiter.pause()) {
    if (now_seconds() - begin > end_.timeout_seconds)
      fail(cat(what, " took more than ", end_.timeout_seconds, " s: not all ranks took part"),
           "look for a rank that is late or has ended; NCCL_DEBUG=INFO shows what NCCL waits for");
  }
}

void NcclConnection::accept(NcclResult result, const std::string& what) {
  check(result, what);
  settle(what);
}

NcclResult NcclConnection::look(const std::string& what) {
  NcclResult state = NcclResult::success;
  check(api_.async_error(comm_, &state), what);
  check(state, what);
  return state;
}

void NcclConnection::abort(const std::string& why) {
  if (std::exchange(aborted_, true)) return;
  if (comm_ != nullptr) abort_nccl(api_, std::exchange(comm_, nullptr), why);
  if (end_.abort_rest) end_.abort_rest(why);
}

namespace {

class NcclPending final : public Pending {
 public:
  NcclPending(NcclQueue& queue, cuda::Device& device, std::shared_ptr<NcclCall> call)
      : queue_(queue), device_(device), call_(std::move(call)) {}
  bool done() override {
    queue_.poll();
    return call_->ended;
  }
  void finish() override {
    if (!call_->ended) device_.wait(device_.compute_stream(), call_->end);
  }

 private:
  NcclQueue& queue_;
  cuda::Device& device_;
  std::shared_ptr<NcclCall> call_;
};

}  // namespace

std::unique_ptr<Pending> NcclQueue::pending(std::shared_ptr<NcclCall> call) {
  return std::make_unique<NcclPending>(*this, device_, std::move(call));
}

void NcclQueue::poll() {
  if (connection.aborted()) return;
  for (; !running_.empty() && device_.done(running_.front()->end); running_.pop_front()) {
    running_.front()->ended = true;
    events_.put_back({running_.front()->ready, running_.front()->end});
  }
  connection.look(running_.empty() ? std::string("NCCL") : running_.front()->what);
  if (running_.empty()) return;
  NcclCall& first = *running_.front();
  const double now = now_seconds();
  if (first.since < 0 && device_.done(first.ready)) first.since = now;
  if (first.since >= 0 && now - first.since > timeout_seconds_)
    connection.fail(
        cat(first.what, " took more than ", timeout_seconds_, " s", late_),
        "look for a rank that is late or has ended; communication.timeout_seconds is the limit for a whole step");
}

namespace {

constexpr const char* kVariables[] = {
    "NCCL_ALGO",     "NCCL_PROTO",    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE",      "NCCL_NVLS_ENABLE",   "NCCL_COLLNET_ENABLE"};

}  // namespace

std::map<std::string, std::string> nccl_variables() {
  std::map<std::string, std::string> set;
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) set[name] = value;
  return set;
}

void take_kept_variables(const std::string& algorithm, const std::map<std::string, std::string>& kept, bool reports) {
  const auto kept_algorithm = kept.find("algorithm");
  const bool same_algorithm = kept_algorithm != kept.end() && kept_algorithm->second == algorithm;
  std::string taken;
  for (const std::string name : kVariables) {
    const auto value = kept.find(name);
    if (value == kept.end() || std::getenv(name.c_str()) != nullptr) continue;
    if (name == "NCCL_ALGO" && !same_algorithm) continue;
    setenv(name.c_str(), value->second.c_str(), 1);
    taken += cat(" ", name, "=", value->second);
  }
  if (!taken.empty() && reports) log_info("as at the run's start:", taken);
}

void choose_algorithm(const std::string& algorithm, int nccl_version) {
  if (algorithm == "auto") return;
  if (algorithm != "ring" && algorithm != "tree")
    throw Error(cat("communication.algorithm is '", algorithm, "', which only MPI has, but this run sums with NCCL"),
                "choose auto, ring or tree, or communication.library: mpi");
  // Since NCCL 2.24, an algorithm can be chosen for one collective only.
  const std::string value = nccl_version >= 22400 ? "allreduce:" + algorithm : algorithm;
  setenv("NCCL_ALGO", value.c_str(), 0);
}

void compare_records(const std::map<std::string, std::string>& record, Communicator& host) {
  std::string mine;
  for (const auto& [name, value] : record) mine += cat(name, " = ", value, "\n");
  const std::string first = broadcast_string(host, mine, 0);
  if (mine != first)
    throw Error(
        cat("rank ", host.rank(), " would use NCCL in another way than rank 0 and wait for it for ever. Here:\n", mine,
            "on rank 0:\n", first),
        "give all ranks the same NCCL library and the same NCCL_ variables (mpirun -x NAME, srun --export)");
}

namespace {

bool fails(NcclResult result) {
  return result != NcclResult::success && result != NcclResult::in_progress;
}

// Does `calls`, which form one collective.
template <class Calls>
NcclResult in_group(const NcclStream& to, const Calls& calls) {
  if (const NcclResult started = to.api.group_start(); fails(started)) return started;
  const NcclResult result = calls();
  const NcclResult ended = to.api.group_end();  // a group that was begun must end, even after an error
  return fails(result) ? result : ended;
}

// Calls `call` for each piece that is not empty, with the rank of the piece.
template <class Call>
NcclResult for_pieces(const NcclStream& to, std::int64_t count, std::int64_t piece, const Call& call) {
  return in_group(to, [&] {
    NcclResult result = NcclResult::success;
    for (int rank = 0; rank * piece < count && !fails(result); ++rank)
      result = call(rank * piece, static_cast<std::size_t>(std::min(piece, count - rank * piece)), rank);
    return result;
  });
}

}  // namespace

NcclResult reduce_pieces(const NcclStream& to, void* values, std::int64_t count, std::int64_t piece, NcclType type) {
  const auto at = [&](std::int64_t element) { return static_cast<char*>(values) + element * bytes_of(type); };
  if (count == piece * to.ranks)
    return to.api.reduce_scatter(values, at(to.rank * piece), static_cast<std::size_t>(piece), type, NcclOperation::sum,
                                 to.comm, to.stream);
  return for_pieces(to, count, piece, [&](std::int64_t begin, std::size_t length, int rank) {
    return to.api.reduce(at(begin), at(begin), length, type, NcclOperation::sum, rank, to.comm, to.stream);
  });
}

NcclResult gather_pieces(const NcclStream& to, float* values, std::int64_t count, std::int64_t piece) {
  if (count == piece * to.ranks)
    return to.api.all_gather(values + to.rank * piece, values, static_cast<std::size_t>(piece), NcclType::fp32, to.comm,
                             to.stream);
  return for_pieces(to, count, piece, [&](std::int64_t begin, std::size_t length, int rank) {
    return to.api.broadcast(values + begin, values + begin, length, NcclType::fp32, rank, to.comm, to.stream);
  });
}

NcclResult exchange(const NcclStream& to, const SumStep& step, const float* values, float* received) {
  return in_group(to, [&] {
    NcclResult result = NcclResult::success;
    if (step.sent.size() > 0)
      result = to.api.send(values + step.sent.begin, step.sent.size(), NcclType::fp32, step.to, to.comm, to.stream);
    if (step.received.size() > 0 && !fails(result))
      result = to.api.receive(received, step.received.size(), NcclType::fp32, step.from, to.comm, to.stream);
    return result;
  });
}

}  // namespace ringtrain
