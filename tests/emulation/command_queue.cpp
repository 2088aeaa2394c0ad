#include "tests/emulation/command_queue.h"

#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

namespace ringtrain::cuda {

std::size_t CommandQueues::add_stream() {
  queues_.emplace_back();
  return queues_.size() - 1;
}

void CommandQueues::give(std::size_t stream, std::function<void()> work, std::function<bool()> ready) {
  queues_[stream].push_back({std::move(work), std::move(ready), nullptr, nullptr});
  after_issue(stream);
}

std::shared_ptr<CommandQueues::Recording> CommandQueues::record(std::size_t stream) {
  auto recording = std::make_shared<Recording>();
  recording->stream = stream;
  queues_[stream].push_back({nullptr, nullptr, recording, nullptr});
  after_issue(stream);
  return recording;
}

void CommandQueues::wait(std::size_t stream, std::shared_ptr<Recording> recording) {
  if (recording == nullptr) return;  // CUDA also ignores a wait for an event without a record
  queues_[stream].push_back({nullptr, nullptr, nullptr, std::move(recording)});
  after_issue(stream);
}

void CommandQueues::after_issue(std::size_t stream) {
  if (order_.kind == RunOrder::Kind::at_issue) finish(stream);
}

bool CommandQueues::run_one(std::size_t stream) {
  std::deque<Item>& queue = queues_[stream];
  if (queue.empty()) return false;
  if (queue.front().waits_for != nullptr && !queue.front().waits_for->happened) return false;
  if (queue.front().ready && !queue.front().ready()) return false;
  const Item item = std::move(queue.front());
  queue.pop_front();
  if (item.work) item.work();
  if (item.happens != nullptr) {
    item.happens->happened = true;
    item.happens->seconds = now_seconds();
  }
  return true;
}

void CommandQueues::run_others() {
  if (order_.kind != RunOrder::Kind::random) return;
  // Mostly this runs nothing, and sometimes a long stretch of one stream. Both extremes reveal missing waits.
  const double draw = random_uniform(order_.seed, draws_++);
  if (draw > 0.3) return;
  const auto stream =
      static_cast<std::size_t>(random_uniform(order_.seed, draws_++) * static_cast<double>(queues_.size()));
  const int most = draw < 0.1 ? 1000 : 3;
  for (int i = 0; i < most && run_one(stream); ++i) {
  }
}

bool CommandQueues::advance(const Recording& recording) {
  if (recording.happened) return false;
  run_others();
  if (recording.happened) return true;
  std::size_t stream = recording.stream;
  // If a wait is at the front of the queue, go to the stream that it waits for. This loop ends, because a wait is
  // issued after what it waits for.
  for (;;) {
    const std::deque<Item>& queue = queues_[stream];
    if (queue.empty()) throw Error("an event was recorded in a stream that has nothing left to run");
    const Item& front = queue.front();
    if (front.waits_for == nullptr || front.waits_for->happened) break;
    stream = front.waits_for->stream;
  }
  if (!run_one(stream)) run_elsewhere(stream);
  return true;
}

// While a stream waits for another rank, the other streams go on, as they would on a GPU. The other rank may need their
// results.
void CommandQueues::run_elsewhere(std::size_t stream) {
  for (std::size_t other = 0; other < queues_.size(); ++other)
    if (other != stream && run_one(other)) return;
  const timespec moment{0, 10'000};
  nanosleep(&moment, nullptr);  // leaves the core to other ranks
}

void CommandQueues::finish(std::size_t stream) {
  auto end = std::make_shared<Recording>();
  end->stream = stream;
  queues_[stream].push_back({nullptr, nullptr, end, nullptr});
  while (advance(*end)) {
  }
}

void CommandQueues::run_ready() {
  for (bool more = true; more;) {
    more = false;
    for (std::size_t stream = 0; stream < queues_.size(); ++stream)
      while (run_one(stream)) more = true;
  }
}

void CommandQueues::finish_all() {
  for (std::size_t stream = 0; stream < queues_.size(); ++stream) finish(stream);
}

}  // namespace ringtrain::cuda
