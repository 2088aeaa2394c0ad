// Links between devices: through host memory, or by NCCL.
#include <algorithm>
#include <deque>
#include <exception>
#include <list>
#include <utility>
#include <vector>

#include "backend/cuda/device/device.h"
#include "base/error.h"
#include "cluster/links.h"
#include "cluster/nccl_connection.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

// Records a timed event before and after each wait in the compute stream. The first event happens when the work before
// the wait has ended. The stream is therefore idle between the two events.
class DeviceWaitTimer final : public WaitTimer {
 public:
  explicit DeviceWaitTimer(cuda::Device& device) : device_(device) {}
  void time(const std::function<void()>& wait) override {
    if (free_.empty()) free_.push_back({device_.make_timed_event(), device_.make_timed_event()});
    const Wait own = free_.back();
    free_.pop_back();
    device_.record(own.begin, device_.compute_stream());
    wait();
    device_.record(own.end, device_.compute_stream());
    open_.push_back(own);
  }
  double take_seconds() override {
    double seconds = 0;
    for (; !open_.empty() && device_.done(open_.front().end); open_.pop_front()) {
      seconds += device_.seconds_between(open_.front().begin, open_.front().end);
      free_.push_back(open_.front());
    }
    return seconds;
  }

 private:
  struct Wait {
    cuda::Event begin, end;
  };
  cuda::Device& device_;
  std::deque<Wait> open_;  // in the order of the compute stream
  std::vector<Wait> free_;
};

}  // namespace

// ---- Links through host memory

namespace {

using cuda::CopyKind;

// Memory of the device and a page-locked buffer of the same size.
struct StagedBuffer {
  std::byte* memory = nullptr;
  std::byte* staged = nullptr;
  std::int64_t bytes = 0;
  cuda::Event free;  // the last copy from `staged` to the device is done
};

// A message waits, travels between hosts, and has arrived, in this order.
struct Journey {
  enum class At { waits, travels, arrived };
  bool sends = false;
  std::span<std::byte> memory, staged;
  int peer = 0, tag = 0;
  cuda::Event ready;       // `staged` may be sent (or overwritten, for a received message)
  cuda::Event done = {};   // received: the message is in `memory`; this is the buffer's event `free`
  cuda::Event taken = {};  // received: earlier reads of `memory` have ended
  At at = At::waits;
  std::unique_ptr<Pending> message;  // message of the host's links
};

class StagedLinks final : public Links {
 public:
  StagedLinks(cuda::Device& device, Links& host)
      : device_(device), host_(host), down_(device.make_stream(true)), up_(device.make_stream(true)) {}
  ~StagedLinks() override {
    journeys_.clear();
    while (!buffers_.empty()) release(buffers_.back().memory);
  }
  StagedLinks(const StagedLinks&) = delete;
  StagedLinks& operator=(const StagedLinks&) = delete;

  std::byte* allocate(std::int64_t bytes) override {
    auto* const memory = static_cast<std::byte*>(device_.allocate(bytes, "activations and gradients at the cuts"));
    buffers_.push_back({.memory = memory,
                        .staged = static_cast<std::byte*>(device_.allocate_host(bytes)),
                        .bytes = bytes,
                        .free = device_.make_event()});
    return memory;
  }
  void release(std::byte* memory) override {
    const auto buffer = std::ranges::find(buffers_, memory, &StagedBuffer::memory);
    if (buffer == buffers_.end()) return;
    device_.release_host(buffer->staged);
    device_.release(buffer->memory);
    buffers_.erase(buffer);
  }

  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to, int tag) override {
    StagedBuffer& buffer = buffer_of(bytes.data(), bytes.size());
    Journey& journey = begin(buffer, bytes.size(), to, tag);
    journey.sends = true;
    const cuda::Event made = events_.take();
    device_.record(made, device_.compute_stream());
    device_.wait(down_, made);
    device_.copy(journey.staged.data(), journey.memory.data(), std::ssize(bytes), CopyKind::to_host, down_);
    device_.record(journey.ready, down_);
    events_.put_back({made});
    return std::make_unique<StagedMessage>(*this, journey);
  }
  // `staged` is overwritten only after the copy of the previous message from `staged` has ended.
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from, int tag) override {
    StagedBuffer& buffer = buffer_of(bytes.data(), bytes.size());
    Journey& journey = begin(buffer, bytes.size(), from, tag);
    device_.record(journey.ready, up_);
    journey.taken = events_.take();
    journey.done = buffer.free;
    device_.record(journey.taken, device_.compute_stream());
    return std::make_unique<StagedMessage>(*this, journey);
  }

  std::unique_ptr<WaitTimer> make_timer() override { return std::make_unique<DeviceWaitTimer>(device_); }
  // Messages with the same ranks, direction and tag start in the order of the calls.
  void poll() override {
    std::vector<const Journey*> waiting;
    for (Journey& journey : journeys_) {
      const auto follows = [&](const Journey* before) {
        return before->sends == journey.sends && before->peer == journey.peer && before->tag == journey.tag;
      };
      if (journey.at == Journey::At::waits) {
        if (std::ranges::any_of(waiting, follows) || !device_.done(journey.ready)) {
          waiting.push_back(&journey);
          continue;
        }
        journey.message = journey.sends ? host_.send(journey.staged, journey.peer, journey.tag)
                                        : host_.receive(journey.staged, journey.peer, journey.tag);
        journey.at = Journey::At::travels;
      }
      if (journey.at == Journey::At::travels && journey.message->done()) arrive(journey);
    }
  }

 private:
  class StagedMessage final : public Pending {
   public:
    StagedMessage(StagedLinks& links, Journey& journey) : links_(links), journey_(journey) {}
    ~StagedMessage() override { links_.end(journey_); }
    bool done() override {
      links_.poll();
      return journey_.at == Journey::At::arrived;
    }
    void finish() override { links_.finish(journey_); }

   private:
    StagedLinks& links_;
    Journey& journey_;
  };

  StagedBuffer& buffer_of(const std::byte* memory, std::size_t bytes) {
    const auto buffer = std::ranges::find(buffers_, memory, &StagedBuffer::memory);
    if (buffer == buffers_.end() || std::ssize(std::span(memory, bytes)) > buffer->bytes)
      throw Error("a message through host memory that is not in memory of allocate()");
    return *buffer;
  }
  Journey& begin(const StagedBuffer& buffer, std::size_t bytes, int peer, int tag) {
    Journey& journey = journeys_.emplace_back();
    journey.memory = {buffer.memory, bytes};
    journey.staged = {buffer.staged, bytes};
    journey.peer = peer;
    journey.tag = tag;
    journey.ready = events_.take();
    return journey;
  }
  void arrive(Journey& journey) {
    journey.at = Journey::At::arrived;
    if (journey.sends) return;
    device_.wait(up_, journey.taken);
    device_.copy(journey.memory.data(), journey.staged.data(), std::ssize(journey.memory), CopyKind::to_device, up_);
    device_.record(journey.done, up_);
  }
  void finish(Journey& journey) {
    poll();
    for (Waiter waiter; journey.at != Journey::At::arrived; waiter.pause()) poll();
    if (!journey.sends) device_.wait(device_.compute_stream(), journey.done);
  }
  void end(const Journey& journey) {
    events_.put_back({journey.ready});
    if (!journey.sends) events_.put_back({journey.taken});
    journeys_.remove_if([&](const Journey& j) { return &j == &journey; });
  }

  cuda::Device& device_;
  Links& host_;
  cuda::Stream down_, up_;
  std::vector<StagedBuffer> buffers_;
  std::list<Journey> journeys_;
  cuda::EventPool events_{device_};
};

}  // namespace

std::unique_ptr<Links> make_staged_links(cuda::Device& device, Links& host) {
  return std::make_unique<StagedLinks>(device, host);
}

// ---- Links by NCCL

namespace {

constexpr int kBlocks = 8;         // GPU blocks per lane; a stage's four lanes use a quarter of an H100
constexpr int kIdTag = 4;          // tag in the host's links
constexpr int kFrom = 0, kTo = 1;  // ranks of a lane's communicator

class NcclLane {
 public:
  NcclLane(const NcclApi& api, cuda::Device& device, Links& host, const NcclLinkOptions& options, const Lane& lane,
           std::function<void(const std::string&)> abort_rest)
      : lane_(lane),
        sends_(lane.from == options.rank),
        queue_(api, device,
               {.rank = sends_ ? kFrom : kTo,
                .size = 2,
                .who = cat("rank ", options.rank),
                .max_ctas = kBlocks,
                .timeout_seconds = options.timeout_seconds,
                .abort_rest = std::move(abort_rest)},
               "") {
    NcclUniqueId id{};
    if (sends_) {
      id = queue_.connection.make_id();
      host.send(value_bytes(id), lane.to, kIdTag)->finish();
    } else {
      host.receive(value_bytes(id), lane.from, kIdTag)->finish();
    }
    queue_.connection.start(id, cat("the start of NCCL from rank ", lane.from, " to rank ", lane.to));
    // NCCL connects two ranks at their first message, and each rank waits for the other one. The first message is
    // therefore sent here, because both ranks make their lanes at the same time.
    const cuda::DeviceMemory byte(device, 1, "the first message of a link");
    device.synchronize(start(byte.data(), 1)->end, {});
  }

  bool is(bool sends, int peer, int tag) const {
    return sends_ == sends && (sends ? lane_.to : lane_.from) == peer && lane_.tag == tag;
  }
  std::unique_ptr<Pending> message(void* memory, std::size_t bytes) { return queue_.pending(start(memory, bytes)); }
  void poll() { queue_.poll(); }
  void abort(const std::string& why) { queue_.connection.abort(why); }

 private:
  std::shared_ptr<NcclCall> start(void* memory, std::size_t bytes) {
    const std::string name = cat("a message of ", bytes, " bytes from rank ", lane_.from, " to rank ", lane_.to);
    NcclConnection& connection = queue_.connection;
    if (connection.aborted()) throw Error(cat(name, " was asked for after NCCL had been ended"));
    return queue_.start(name, [&](const std::string& what) {
      const NcclApi& api = connection.api();
      connection.accept(sends_ ? api.send(memory, bytes, NcclType::bytes, kTo, connection.get(), queue_.handle())
                               : api.receive(memory, bytes, NcclType::bytes, kFrom, connection.get(), queue_.handle()),
                        what);
      if (sends_) sent_bytes().by_message += static_cast<std::int64_t>(bytes);
    });
  }

  const Lane lane_;
  const bool sends_;
  NcclQueue queue_;
};

class NcclLinks final : public Links {
 public:
  NcclLinks(const std::function<const NcclApi&()>& api, cuda::Device& device, Links& host,
            const NcclLinkOptions& options)
      : device_(device) {
    for (const Lane& lane : options.lanes)
      lanes_.push_back(std::make_unique<NcclLane>(api(), device, host, options, lane,
                                                  [this](const std::string& why) { abort(why); }));
  }

  std::byte* allocate(std::int64_t bytes) override {
    return static_cast<std::byte*>(device_.allocate(bytes, "activations and gradients at the cuts"));
  }
  // Freeing would wait for messages, and therefore for ranks that may never come.
  void release(std::byte* memory) override {
    if (std::uncaught_exceptions() > 0) abort("an error ended this rank");
    device_.release(memory);
  }

  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to, int tag) override {
    return message(const_cast<std::byte*>(bytes.data()), bytes.size(), true, to, tag);
  }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from, int tag) override {
    return message(bytes.data(), bytes.size(), false, from, tag);
  }
  std::unique_ptr<WaitTimer> make_timer() override { return std::make_unique<DeviceWaitTimer>(device_); }
  void poll() override {
    for (const auto& lane : lanes_) lane->poll();
  }
  void abort(const std::string& why) override {
    for (const auto& lane : lanes_) lane->abort(why);
  }

 private:
  std::unique_ptr<Pending> message(void* memory, std::size_t bytes, bool sends, int peer, int tag) {
    const auto lane = std::ranges::find_if(lanes_, [&](const auto& l) { return l->is(sends, peer, tag); });
    if (lane == lanes_.end())
      throw Error(
          cat("a message ", sends ? "to" : "from", " rank ", peer, " with tag ", tag, ", for which there is no lane"));
    return (*lane)->message(memory, bytes);
  }

  cuda::Device& device_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;
};

}  // namespace

std::unique_ptr<Links> make_nccl_links(const std::function<const NcclApi&()>& api, cuda::Device& device, Links& host,
                                       const NcclLinkOptions& options) {
  return std::make_unique<NcclLinks>(api, device, host, options);
}

}  // namespace ringtrain
