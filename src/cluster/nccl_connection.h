// A communicator of NCCL in non-blocking mode: NCCL's own calls return at once. start() and settle() wait until NCCL
// has accepted a call, but only for a limited time. A rank that does not come then causes an error. abort() works at
// any time. NcclQueue runs collectives or messages in a stream of their own. Other functions set and compare the
// environment variables that NCCL reads when it starts, and give the collectives that NCCL does not have.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"
#include "cluster/nccl_library.h"
#include "cluster/sum_algorithms.h"

namespace ringtrain {

// Loads libnccl.so.2 at the first call. Throws Error with advice if there is none, if it is too old, or if the program
// was built without CUDA.
const NcclApi& nccl_api();

struct NcclEnd {
  int rank = 0, size = 1;  // in this communicator
  std::string who;         // for messages: "rank 3 of 8"
  int max_ctas = 0;        // 0: NCCL's choice
  // The limit for the start, and for a call until NCCL has accepted it.
  double timeout_seconds = 480;
  // Called by abort() after NCCL has ended.
  std::function<void(const std::string& why)> abort_rest = {};
};

class NcclConnection {
 public:
  // `api` must outlive this object.
  NcclConnection(const NcclApi& api, NcclEnd end) : api_(api), end_(std::move(end)) {}
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;
  ~NcclConnection();

  // One rank makes the id, and all ranks pass it to start(). Throws Error if no network is found.
  NcclUniqueId make_id();
  // Collective over the communicator's ranks. Throws Error if not all come in time. `what`: e.g. "the start of NCCL".
  void start(const NcclUniqueId& id, const std::string& what);

  const NcclApi& api() const { return api_; }
  NcclComm* get() const { return comm_; }  // null: aborted or not started
  // Throws Error if the call failed. A call in progress has not failed. `what` names the call in messages.
  void check(NcclResult result, const std::string& what);
  // Waits until NCCL has accepted the last call. Before that, the communicator must not be used, and the stream must
  // get no other work.
  void settle(const std::string& what);
  // Calls check(), and then settle().
  void accept(NcclResult result, const std::string& what);
  // Throws an error of NCCL that came after the last call. Returns `in_progress` until NCCL has accepted that call.
  NcclResult look(const std::string& what);
  // Throws an Error that says which rank failed and how. Before that, it ends NCCL: its kernels would keep the device
  // busy, and freeing memory would wait for them.
  [[noreturn]] void fail(const std::string& what, const std::string& hint);

  bool aborted() const { return aborted_; }
  void abort(const std::string& why);  // throws nothing

 private:
  std::string library_says(NcclResult result);

  const NcclApi& api_;
  NcclEnd end_;
  NcclComm* comm_ = nullptr;
  bool aborted_ = false;
};

// A collective or a message in the stream of a queue.
struct NcclCall {
  std::string what;  // names it in messages
  cuda::Event ready, end;
  double since = -1;  // time when `ready` was seen first and all earlier calls had ended; negative: not yet
  bool ended = false;
};

// The collectives or messages of one NCCL communicator, which run in a stream one after the other. The queue itself
// never lets the host wait for them.
class NcclQueue {
 public:
  // `late` ends the message about a call that takes too long: "the sum of bucket 3 took more than 480 s" and then
  // ": not all ranks took part".
  NcclQueue(const NcclApi& api, cuda::Device& device, NcclEnd end, std::string late)
      : connection(api, end),
        stream(device.make_stream(true)),
        device_(device),
        timeout_seconds_(end.timeout_seconds),
        late_(std::move(late)) {}

  // Lets `call` queue a call of NCCL in the stream. It runs after all work that is now in the compute stream.
  template <class Call>
  std::shared_ptr<NcclCall> start(std::string what, const Call& call) {
    const auto started = std::make_shared<NcclCall>();
    started->what = std::move(what);
    started->ready = events_.take();
    started->end = events_.take();
    device_.record(started->ready, device_.compute_stream());
    device_.wait(stream, started->ready);
    call(started->what);
    device_.record(started->end, stream);
    running_.push_back(started);
    return started;
  }
  // Later work in the compute stream waits after the result's finish().
  std::unique_ptr<Pending> pending(std::shared_ptr<NcclCall> call);
  // Notes which calls have ended. Throws an error of NCCL, and an Error for a call that takes more than the timeout
  // after this rank was ready.
  void poll();
  void* handle() const { return reinterpret_cast<void*>(stream.handle); }  // of the stream, for NCCL

  NcclConnection connection;
  const cuda::Stream stream;

 private:
  cuda::Device& device_;
  const double timeout_seconds_;
  const std::string late_;
  std::deque<std::shared_ptr<NcclCall>> running_;
  cuda::EventPool events_{device_};
};

// Ends an NCCL communicator after an error. Calls ncclCommAbort in a thread of its own, because the call itself may
// hang (in a driver call, on a dead network). After the deadline, the rank prints a message and ends the whole job
// (abort_job), because freeing device memory would hang too. Throws nothing.
void abort_nccl(const NcclApi& api, NcclComm* comm, const std::string& why, double deadline_seconds = 10);

// The environment variables that decide in which order NCCL adds. NCCL does not report its algorithm and its number of
// channels. With the same version, topology and variables it makes the same choice.

// Returns the variables that are set, with their values.
std::map<std::string, std::string> nccl_variables();

// Sets the variables of the run's first start again (`kept`: a communicator's record()), unless the user sets others
// now. Call it before NCCL reads them. NCCL_ALGO is set again only if `algorithm` is the one of that start.
void take_kept_variables(const std::string& algorithm, const std::map<std::string, std::string>& kept, bool reports);

// Sets NCCL_ALGO for `algorithm` unless the user has set it. Throws Error for a word that is not auto, ring or tree.
void choose_algorithm(const std::string& algorithm, int nccl_version);

// Throws Error if this rank's record is not rank 0's: ranks would wait for each other. Collective over `host`.
void compare_records(const std::map<std::string, std::string>& record, Communicator& host);

// Collectives that NCCL does not have: the halves of a sum whose pieces differ in length (NCCL's reduce-scatter and
// all-gather take only equal ones), and two messages in opposite directions.

// The library, the communicator and the stream for calls.
struct NcclStream {
  const NcclApi& api;
  NcclComm* comm;
  void* stream;  // a cudaStream_t
  int rank, ranks;
};

// The halves of a sum (Communicator::start_reduce_scatter(), start_all_gather()), in place. `values` [count] are cut
// into pieces of `piece` elements. The last pieces may be shorter or empty. Equal pieces take one call of NCCL. Other
// pieces take a group of calls, one for each piece.
NcclResult reduce_pieces(const NcclStream& to, void* values, std::int64_t count, std::int64_t piece, NcclType type);
NcclResult gather_pieces(const NcclStream& to, float* values, std::int64_t count, std::int64_t piece);

// Sends and receives the messages of one step of a schedule at the same time. It sends the part `step.sent` of `values`
// and writes what arrives to `received`.
NcclResult exchange(const NcclStream& to, const SumStep& step, const float* values, float* received);

}  // namespace ringtrain
