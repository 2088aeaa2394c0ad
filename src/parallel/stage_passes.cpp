#include "parallel/stage_passes.h"

#include <array>
#include <utility>

#include "base/clock.h"

namespace ringtrain {
namespace {

// Two buffers for messages of one length. There are none if the length is 0.
class Buffers {
 public:
  Buffers(Links& links, std::int64_t bytes) : links_(links), bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes > 0)
      for (std::byte*& buffer : memory_) buffer = links.allocate(bytes);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (std::byte* buffer : memory_)
      if (buffer != nullptr) links_.release(buffer);
  }
  bool empty() const { return bytes_ == 0; }
  std::span<std::byte> operator[](std::size_t which) const { return {memory_[which], bytes_}; }

 private:
  Links& links_;
  std::size_t bytes_;
  std::array<std::byte*, 2> memory_{};
};

// The messages from a neighbour, in order. The next message is received while the previous one is used.
class Arrivals {
 public:
  Arrivals(Links& links, int from, int tag, std::int64_t bytes)
      : links_(links), from_(from), tag_(tag), buffers_(links, bytes) {}
  // Expects `count` messages.
  void expect(std::int64_t count) {
    if (buffers_.empty()) return;
    left_ = count;
    post();
  }
  // Waits for the next message. The returned bytes stay valid until the next call.
  const std::byte* take() {
    if (buffers_.empty()) return nullptr;
    std::exchange(message_, nullptr)->finish();
    const std::byte* bytes = buffers_[posted_ ^ 1u].data();
    post();
    return bytes;
  }
  void poll() {
    if (message_) message_->done();
  }

 private:
  void post() {
    if (left_ == 0) return;
    --left_;
    message_ = links_.receive(buffers_[posted_], from_, tag_);
    posted_ ^= 1u;
  }

  Links& links_;
  int from_, tag_;
  Buffers buffers_;
  std::unique_ptr<Message> message_;
  unsigned posted_ = 0;  // the buffer of the next message
  std::int64_t left_ = 0;
};

// The messages to a neighbour, in order.
class Departures {
 public:
  Departures(Links& links, int to, int tag, std::int64_t bytes)
      : links_(links), to_(to), tag_(tag), buffers_(links, bytes) {}
  // Returns the memory for the next message. Waits until the message that used this memory was sent.
  std::byte* next() {
    if (buffers_.empty()) return nullptr;
    if (messages_[at_]) std::exchange(messages_[at_], nullptr)->finish();
    return buffers_[at_].data();
  }
  void send() {
    if (buffers_.empty()) return;
    messages_[at_] = links_.send(buffers_[at_], to_, tag_);
    at_ ^= 1u;
  }
  void finish() {
    for (auto& message : messages_)
      if (message) std::exchange(message, nullptr)->finish();
  }
  void poll() {
    for (auto& message : messages_)
      if (message) message->done();
  }

 private:
  Links& links_;
  int to_, tag_;
  Buffers buffers_;
  std::array<std::unique_ptr<Message>, 2> messages_;
  unsigned at_ = 0;
};

template <class Action>
auto timed(double& seconds, const Action& action) {
  struct Stop {
    double& sum;
    double begin = now_seconds();
    ~Stop() { sum += now_seconds() - begin; }
  };
  const Stop stop{seconds};
  return action();
}

class StagePasses : public PassOrder {
 public:
  StagePasses(StageRanks& ranks, Program& program, std::string schedule, std::int64_t slots)
      : ranks_(ranks),
        program_(program),
        schedule_(std::move(schedule)),
        slots_(slots),
        activations_in_(ranks.crossings(), before(), StageRanks::activations, program.part_bytes().activations_in),
        gradients_in_(ranks.crossings(), after(), StageRanks::gradients, program.part_bytes().gradients_in),
        activations_out_(ranks.crossings(), after(), StageRanks::activations, program.part_bytes().activations_out),
        gradients_out_(ranks.crossings(), before(), StageRanks::gradients, program.part_bytes().gradients_out) {}

  PassTimes run(std::int64_t micro_batches, const PassCalls& calls) override {
    times_ = {};
    activations_in_.expect(micro_batches);
    gradients_in_.expect(micro_batches);
    for (const StageEvent& event : stage_events(schedule_, ranks_.stage(), ranks_.stages(), micro_batches)) {
      const std::int64_t i = event.micro_batch;
      if (!event.backward) calls.input(i);
      program_.select(static_cast<int>(i % slots_));
      if (event.backward)
        backward([&] { calls.backward(i); }, calls.waits);
      else
        forward_pass([&] { calls.forward(i); }, calls.waits);
    }
    calls.waits();
    timed(times_.boundary, [&] {
      activations_out_.finish();
      gradients_out_.finish();
    });
    return times_;
  }

  void forward(const std::function<void()>& pass, const std::function<void()>& waits) override {
    activations_in_.expect(1);
    forward_pass(pass, waits);
    waits();
    activations_out_.finish();  // nobody may call poll() before the next pass
  }

 private:
  int before() const { return ranks_.is_first() ? -1 : ranks_.rank_of(ranks_.replica(), ranks_.stage() - 1); }
  int after() const { return ranks_.is_last() ? -1 : ranks_.rank_of(ranks_.replica(), ranks_.stage() + 1); }

  void forward_pass(const std::function<void()>& pass, const std::function<void()>& waits) {
    waits();
    PartTraffic traffic;
    traffic.activations_in = timed(times_.bubble, [&] { return activations_in_.take(); });
    traffic.activations_out = timed(times_.boundary, [&] { return activations_out_.next(); });
    program_.connect(traffic);
    pass();
    timed(times_.boundary, [&] { activations_out_.send(); });
    poll();
  }

  void backward(const std::function<void()>& pass, const std::function<void()>& waits) {
    waits();
    PartTraffic traffic;
    traffic.gradients_in = timed(times_.bubble, [&] { return gradients_in_.take(); });
    traffic.gradients_out = timed(times_.boundary, [&] { return gradients_out_.next(); });
    program_.connect(traffic);
    pass();
    timed(times_.boundary, [&] { gradients_out_.send(); });
    poll();
  }

  void poll() {
    activations_in_.poll();
    gradients_in_.poll();
    activations_out_.poll();
    gradients_out_.poll();
  }

  StageRanks& ranks_;
  Program& program_;
  std::string schedule_;
  std::int64_t slots_;
  Arrivals activations_in_, gradients_in_;
  Departures activations_out_, gradients_out_;
  PassTimes times_;
};

}  // namespace

std::int64_t pass_order_bytes(const PartBytes& bytes) {
  return 2 * (bytes.activations_in + bytes.activations_out + bytes.gradients_in + bytes.gradients_out);
}

std::unique_ptr<PassOrder> make_stage_passes(StageRanks& ranks, Program& program, const std::string& schedule,
                                             std::int64_t slots) {
  return std::make_unique<StagePasses>(ranks, program, schedule, slots);
}

}  // namespace ringtrain
