#include <algorithm>
#include <list>
#include <vector>

#include "backend/cuda/device/event_pool.h"
#include "base/error.h"
#include "cluster/links.h"
#include "cluster/waiting.h"

namespace ringtrain {
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
  std::unique_ptr<Message> message;  // message of the host's links
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
    StagedBuffer buffer;
    buffer.memory = static_cast<std::byte*>(device_.allocate(bytes, "activations and gradients at the cuts"));
    buffer.staged = static_cast<std::byte*>(device_.allocate_host(bytes));
    buffer.bytes = bytes;
    buffer.free = device_.make_event();
    buffers_.push_back(buffer);
    return buffer.memory;
  }
  void release(std::byte* memory) override {
    const auto buffer = std::ranges::find(buffers_, memory, &StagedBuffer::memory);
    if (buffer == buffers_.end()) return;
    device_.release_host(buffer->staged);
    device_.release(buffer->memory);
    buffers_.erase(buffer);
  }

  std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
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
  std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    StagedBuffer& buffer = buffer_of(bytes.data(), bytes.size());
    Journey& journey = begin(buffer, bytes.size(), from, tag);
    device_.record(journey.ready, up_);
    journey.taken = events_.take();
    journey.done = buffer.free;
    device_.record(journey.taken, device_.compute_stream());
    return std::make_unique<StagedMessage>(*this, journey);
  }

  std::unique_ptr<WaitTimer> make_timer() override { return make_device_wait_timer(device_); }
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
  class StagedMessage final : public Message {
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

}  // namespace ringtrain
