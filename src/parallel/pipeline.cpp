#include "parallel/pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ringtrain {

StageRanks::StageRanks(const RankGroup& group, int stages, std::size_t chunk_bytes, const SumChoice& choice,
                       const StageDevices& devices)
    : stage_(group.rank() % stages),
      stages_(stages),
      replica_(group.rank() / stages),
      replicas_(group.size() / stages),
      over_replicas_(make_mpi_communicator(*group.split(stage_), chunk_bytes, 0x7fffffff, choice)),
      over_stages_(make_mpi_communicator(*group.split(replica_), chunk_bytes, 0x7fffffff, choice)),
      links_(make_links(group)) {
  if (devices.sums && replicas_ > 1) device_sums_ = devices.sums(*over_replicas_);
  if (!devices.links) return;
  std::vector<Lane> lanes;
  for (int cut = std::max(0, stage_ - 1); cut < std::min(stages_ - 1, stage_ + 1); ++cut) {
    const int before = rank_of(replica_, cut), after = rank_of(replica_, cut + 1);
    lanes.push_back({before, after, activations});
    lanes.push_back({after, before, gradients});
  }
  crossings_ = devices.links(*links_, group.rank(), std::move(lanes));
}

void StageRanks::poll() {
  crossings().poll();
  over_replicas().poll();
}

void StageRanks::abort(const std::string& why) {
  if (crossings_) crossings_->abort(why);
  over_replicas().abort(why);
}

UpdateShare StageRanks::share() {
  return {.sum = [this](std::span<double> norms) { over_stages_->sum(norms); }};
}

std::vector<StageEvent> stage_events(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                                     std::int64_t micro_batches) {
  const std::int64_t ahead = schedule == "gpipe" ? micro_batches : std::min(stages - 1 - stage, micro_batches);
  std::vector<StageEvent> events;
  std::int64_t forward = 0, backward = 0;
  while (forward < ahead) events.push_back({false, forward++});
  while (backward < micro_batches) {
    if (forward < micro_batches) events.push_back({false, forward++});
    events.push_back({true, backward++});
  }
  return events;
}

std::int64_t stage_slots(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                         std::int64_t micro_batches) {
  return schedule == "gpipe" ? micro_batches : std::min(stages - stage, micro_batches);
}

double bubble_share(std::int64_t stages, std::int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

namespace {

class LocalOrder : public PassOrder {
 public:
  void run(std::int64_t micro_batches, const PassCalls& calls) override {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      calls.input(i);
      calls.forward(i);
      calls.backward(i);
    }
  }
};

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
  std::unique_ptr<Pending> message_;
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
  std::array<std::unique_ptr<Pending>, 2> messages_;
  unsigned at_ = 0;
};

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
        gradients_out_(ranks.crossings(), before(), StageRanks::gradients, program.part_bytes().gradients_out),
        bubble_(ranks.crossings().make_timer()),
        boundary_(ranks.crossings().make_timer()) {}

  void run(std::int64_t micro_batches, const PassCalls& calls) override {
    activations_in_.expect(micro_batches);
    gradients_in_.expect(micro_batches);
    for (const StageEvent& event : stage_events(schedule_, ranks_.stage(), ranks_.stages(), micro_batches)) {
      const std::int64_t i = event.micro_batch;
      if (!event.backward) calls.input(i);
      program_.select(static_cast<int>(i % slots_));
      if (event.backward)
        backward_pass([&] { calls.backward(i); }, calls.waits);
      else
        forward_pass([&] { calls.forward(i); }, calls.waits);
    }
    calls.waits();
    boundary_->time([&] {
      activations_out_.finish();
      gradients_out_.finish();
    });
  }
  StageWaits stage_waits() override { return {bubble_->take_seconds(), boundary_->take_seconds()}; }

  void forward(const std::function<void()>& pass, const std::function<void()>& waits) override {
    stage_waits();  // forgets the times of earlier calls, because nobody asks for them
    activations_in_.expect(1);
    forward_pass(pass, waits);
    waits();
    activations_out_.finish();  // nobody may call poll() before the next pass
  }

 private:
  int before() const { return ranks_.is_first() ? -1 : ranks_.rank_of(ranks_.replica(), ranks_.stage() - 1); }
  int after() const { return ranks_.is_last() ? -1 : ranks_.rank_of(ranks_.replica(), ranks_.stage() + 1); }

  void forward_pass(const std::function<void()>& compute, const std::function<void()>& waits) {
    pass(compute, waits, activations_in_, &PartTraffic::activations_in, activations_out_,
         &PartTraffic::activations_out);
  }
  void backward_pass(const std::function<void()>& compute, const std::function<void()>& waits) {
    pass(compute, waits, gradients_in_, &PartTraffic::gradients_in, gradients_out_, &PartTraffic::gradients_out);
  }
  // Takes what the pass needs from one neighbour, and gives its result to the other one.
  void pass(const std::function<void()>& compute, const std::function<void()>& waits, Arrivals& in,
            const std::byte* PartTraffic::*taken, Departures& out, std::byte* PartTraffic::*given) {
    waits();
    PartTraffic traffic;
    bubble_->time([&] { traffic.*taken = in.take(); });
    boundary_->time([&] { traffic.*given = out.next(); });
    program_.connect(traffic);
    compute();
    boundary_->time([&] { out.send(); });
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
  std::unique_ptr<WaitTimer> bubble_, boundary_;
};

}  // namespace

std::int64_t pass_order_bytes(const PartBytes& bytes) {
  return 2 * (bytes.activations_in + bytes.activations_out + bytes.gradients_in + bytes.gradients_out);
}

std::unique_ptr<PassOrder> make_pass_order(StageRanks* ranks, Program& program, const std::string& schedule,
                                           std::int64_t slots) {
  if (ranks == nullptr) return std::make_unique<LocalOrder>();
  return std::make_unique<StagePasses>(*ranks, program, schedule, slots);
}

}  // namespace ringtrain
