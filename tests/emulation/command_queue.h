// Streams whose work runs as late as events and the host allow, or in any order that they allow: a missing wait then
// changes results. Work given to a stream waits in its queue until the host asks for something that needs it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace ringtrain::cuda {

// Which of the allowed orders is taken.
struct RunOrder {
  enum class Kind {
    at_issue,  // everything at once, in the order of the calls
    latest,    // only what the host waits for, and nothing before it must
    random     // the same, and between two such commands any commands of other streams, by `seed`
  };
  Kind kind = Kind::at_issue;
  std::uint64_t seed = 0;
};

class CommandQueues {
 public:
  explicit CommandQueues(RunOrder order) : order_(order) {}

  // One record of an event: what a wait that was issued after it waits for.
  struct Recording {
    std::size_t stream = 0;
    bool happened = false;
  };

  std::size_t add_stream();
  // `ready`: asked when the stream has come to the work, again and again until it says yes (the work waits for another
  // rank). Empty: at once.
  void give(std::size_t stream, std::function<void()> work, std::function<bool()> ready = {});
  std::shared_ptr<Recording> record(std::size_t stream);
  void wait(std::size_t stream, std::shared_ptr<Recording> recording);

  // Runs one command that `recording` needs, or any other while that one waits for another rank; false when it has
  // happened.
  bool advance(const Recording& recording);
  void finish(std::size_t stream);
  void finish_all();
  void run_ready();  // all that waits for nothing, in all streams

 private:
  struct Item {
    std::function<void()> work;            // empty: a record or a wait
    std::function<bool()> ready;           // of work
    std::shared_ptr<Recording> happens;    // a record
    std::shared_ptr<Recording> waits_for;  // a wait
  };
  // Takes the front of the queue, unless it waits for what has not happened.
  bool run_one(std::size_t stream);
  void run_elsewhere(std::size_t stream);
  void run_others();
  void after_issue(std::size_t stream);

  RunOrder order_;
  std::uint64_t draws_ = 0;
  std::vector<std::deque<Item>> queues_;
};

}  // namespace ringtrain::cuda
