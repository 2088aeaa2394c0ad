#include "cluster/nccl_links.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include "backend/cuda/device/event_pool.h"
#include "base/clock.h"
#include "base/error.h"
#include "cluster/nccl_connection.h"
#include "cluster/sent_bytes.h"

namespace ringtrain {
namespace {

constexpr int kBlocks = 8;         // GPU blocks per lane; a stage's four lanes use a quarter of an H100
constexpr int kIdTag = 4;          // tag in the host's links
constexpr int kFrom = 0, kTo = 1;  // ranks of a lane's communicator

// A message under way.
struct Passage {
  std::string what;
  cuda::Event ready, end;
  double since = -1;  // time when `ready` was seen first and all earlier messages had ended; negative: not yet
  bool ended = false;
};

class NcclLane {
 public:
  NcclLane(const NcclApi& api, cuda::Device& device, Links& host, const NcclLinkOptions& options, const Lane& lane,
           std::function<void(const std::string&)> abort_rest)
      : lane_(lane),
        device_(device),
        sends_(lane.from == options.rank),
        connection_(api, {.rank = sends_ ? kFrom : kTo,
                          .size = 2,
                          .who = cat("rank ", options.rank),
                          .max_ctas = kBlocks,
                          .timeout_seconds = options.timeout_seconds,
                          .abort_rest = std::move(abort_rest)}),
        stream_(device.make_stream(true)),
        timeout_seconds_(options.timeout_seconds) {
    NcclUniqueId id{};
    const std::span<NcclUniqueId> one(&id, 1);
    if (sends_) {
      id = connection_.make_id();
      host.send(std::as_bytes(one), lane.to, kIdTag)->finish();
    } else {
      host.receive(std::as_writable_bytes(one), lane.from, kIdTag)->finish();
    }
    connection_.start(id, cat("the start of NCCL from rank ", lane.from, " to rank ", lane.to));
    connect();
  }

  bool is(bool sends, int peer, int tag) const {
    return sends_ == sends && (sends ? lane_.to : lane_.from) == peer && lane_.tag == tag;
  }
  const Lane& lane() const { return lane_; }

  std::shared_ptr<Passage> start(void* memory, std::size_t bytes) {
    auto passage = std::make_shared<Passage>();
    passage->what = cat("a message of ", bytes, " bytes from rank ", lane_.from, " to rank ", lane_.to);
    if (connection_.aborted()) throw Error(cat(passage->what, " was asked for after NCCL had been ended"));
    passage->ready = events_.take();
    passage->end = events_.take();
    device_.record(passage->ready, device_.compute_stream());
    device_.wait(stream_, passage->ready);
    const NcclApi& api = connection_.api();
    auto* const stream = reinterpret_cast<void*>(stream_.handle);
    connection_.check(sends_ ? api.send(memory, bytes, NcclType::bytes, kTo, connection_.get(), stream)
                             : api.receive(memory, bytes, NcclType::bytes, kFrom, connection_.get(), stream),
                      passage->what);
    if (sends_) sent_bytes().by_message += static_cast<std::int64_t>(bytes);
    connection_.settle(passage->what);
    device_.record(passage->end, stream_);
    running_.push_back(passage);
    return passage;
  }

  void poll() {
    if (connection_.aborted()) return;
    for (; !running_.empty() && device_.done(running_.front()->end); running_.pop_front()) {
      running_.front()->ended = true;
      events_.put_back({running_.front()->ready, running_.front()->end});
    }
    connection_.look(running_.empty() ? std::string("NCCL") : running_.front()->what);
    if (running_.empty()) return;
    Passage& first = *running_.front();
    const double now = now_seconds();
    if (first.since < 0 && device_.done(first.ready)) first.since = now;
    if (first.since >= 0 && now - first.since > timeout_seconds_)
      connection_.fail(cat(first.what, " took more than ", timeout_seconds_, " s"),
                       "look for a rank that is late or has ended; communication.timeout_seconds is the limit for a "
                       "whole step");
  }
  void abort(const std::string& why) { connection_.abort(why); }

 private:
  // NCCL connects two ranks at their first message, and each rank waits for the other one. The first message is
  // therefore sent here, because both ranks make their lanes at the same time.
  void connect() {
    const cuda::DeviceMemory byte(device_, 1, "the first message of a link");
    const auto passage = start(byte.data(), 1);
    device_.synchronize(passage->end, {});
  }

  const Lane lane_;
  cuda::Device& device_;
  const bool sends_;
  NcclConnection connection_;
  cuda::Stream stream_;
  double timeout_seconds_;
  std::deque<std::shared_ptr<Passage>> running_;
  cuda::EventPool events_{device_};
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

  std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
    return message(const_cast<std::byte*>(bytes.data()), bytes.size(), true, to, tag);
  }
  std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    return message(bytes.data(), bytes.size(), false, from, tag);
  }
  std::unique_ptr<WaitTimer> make_timer() override { return make_device_wait_timer(device_); }
  void poll() override {
    for (const auto& lane : lanes_) lane->poll();
  }
  void abort(const std::string& why) override {
    for (const auto& lane : lanes_) lane->abort(why);
  }

 private:
  class NcclMessage final : public Message {
   public:
    NcclMessage(NcclLinks& links, NcclLane& lane, std::shared_ptr<Passage> passage)
        : links_(links), lane_(lane), passage_(std::move(passage)) {}
    bool done() override {
      lane_.poll();
      return passage_->ended;
    }
    void finish() override {
      if (!passage_->ended) links_.device_.wait(links_.device_.compute_stream(), passage_->end);
    }

   private:
    NcclLinks& links_;
    NcclLane& lane_;
    std::shared_ptr<Passage> passage_;
  };

  std::unique_ptr<Message> message(void* memory, std::size_t bytes, bool sends, int peer, int tag) {
    const auto lane = std::ranges::find_if(lanes_, [&](const auto& l) { return l->is(sends, peer, tag); });
    if (lane == lanes_.end())
      throw Error(
          cat("a message ", sends ? "to" : "from", " rank ", peer, " with tag ", tag, ", for which there is no lane"));
    return std::make_unique<NcclMessage>(*this, **lane, (*lane)->start(memory, bytes));
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
