// Streams whose work runs as late as events and the host allow, or in another order that they allow. A missing wait
// then changes results. Work given to a stream stays in its queue until the host asks for something that needs it. Only
// with RunOrder::Kind::at_issue it runs at once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace ringtrain::cuda {

// The order in which the work runs, among the orders that are allowed.
struct RunOrder {
  enum class Kind {
    at_issue,  // each command at once, in the order of the calls
    latest,    // only the commands that the host waits for, and these as late as possible
    random     // like latest, with random commands of other streams in between, drawn from `seed`
  };
  Kind kind = Kind::at_issue;
  std::uint64_t seed = 0;
};

class CommandQueues {
 public:
  explicit CommandQueues(RunOrder order) : order_(order) {}

  // One record of an event. A wait that is issued after the record waits for it.
  struct Recording {
    std::size_t stream = 0;
    bool happened = false;
    double seconds = 0;  // by the host's clock, when it happened
  };

  std::size_t add_stream();
  // Gives work to a stream. When the stream has come to the work, `ready` is called again and again until it returns
  // true. Work that waits for another rank needs it. Without `ready` the work runs at once.
  void give(std::size_t stream, std::function<void()> work, std::function<bool()> ready = {});
  std::shared_ptr<Recording> record(std::size_t stream);
  void wait(std::size_t stream, std::shared_ptr<Recording> recording);

  // Runs one command that `recording` needs. If that command waits for another rank, a command of another stream runs
  // instead. Returns false when the recording has happened.
  bool advance(const Recording& recording);
  void finish(std::size_t stream);
  void finish_all();
  void run_ready();  // runs everything that waits for nothing, in all streams

 private:
  struct Item {
    std::function<void()> work;            // empty for a record or a wait
    std::function<bool()> ready;           // whether `work` can run
    std::shared_ptr<Recording> happens;    // set for a record
    std::shared_ptr<Recording> waits_for;  // set for a wait
  };
  // Runs the first item of the queue. Returns false when the queue is empty or the item still has to wait.
  bool run_one(std::size_t stream);
  void run_elsewhere(std::size_t stream);
  void run_others();
  void after_issue(std::size_t stream);

  RunOrder order_;
  std::uint64_t draws_ = 0;
  std::vector<std::deque<Item>> queues_;
};

}  // namespace ringtrain::cuda
