// Simulates a network between ranks that are threads. Every message is delayed, and messages of different senders or
// tags overtake each other, at random by a seed. A rank can be made to die in its n-th call, and some of its newest
// messages are then lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "cluster/mailbox.h"

namespace ringtrain {

struct Killed {};  // thrown by a rank that dies

class SimulatedNetwork {
 public:
  SimulatedNetwork(int ranks, unsigned seed) : ranks_(ranks), random_(seed) {}
  std::unique_ptr<Mailbox> mailbox(int rank) { return std::make_unique<Box>(*this, rank); }
  void kill(int rank, int call) { killing_call_[rank] = call; }  // call it before the ranks begin
  // An error on one rank ends all ranks.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  std::set<int> dead() {
    const std::lock_guard lock(mutex_);
    return dead_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    Clock::time_point arrives;
    std::vector<std::byte> bytes;
  };
  // The mailbox of one rank. It learns of a death some time later, when it sends, waits for the dead rank or looks
  // for messages.
  class Box : public Mailbox {
   public:
    Box(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return network_.ranks_; }
    void send(int to, int tag, std::span<const std::byte> bytes) override {
      network_.count_call(rank_);
      for (const int rank : network_.dead_by_chance()) note_death(rank);
      if (!bytes.empty()) network_.post(rank_, to, tag, bytes);
    }
    void start_sending(int to, int tag, std::span<const std::byte> bytes) override { send(to, tag, bytes); }
    void finish_sending() override {}
    bool receive(int from, int tag, std::span<std::byte> bytes) override {
      network_.count_call(rank_);
      if (knows(from)) return false;
      if (bytes.empty()) return true;
      if (network_.take(from, rank_, tag, bytes)) return true;
      note_death(from);
      return false;
    }
    std::optional<int> sender_of_waiting(int tag) override {
      network_.count_call(rank_);
      for (const int rank : network_.dead_by_chance()) note_death(rank);
      return network_.sender(rank_, tag, known_);
    }
    void pause() override {
      network_.expect_progress();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const std::vector<int>& dead() const override { return known_; }
    void note_death(int rank) override {
      if (!knows(rank)) known_.push_back(rank);
    }

   private:
    bool knows(int rank) const { return std::ranges::find(known_, rank) != known_.end(); }

    SimulatedNetwork& network_;
    int rank_;
    std::vector<int> known_;
  };

  // If no message has been sent for long, all ranks wait for each other.
  void expect_progress() {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Killed();
    if (Clock::now() - newest_ > std::chrono::seconds(5)) throw Error("all ranks wait for ever");
  }
  void count_call(int rank) {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Killed();
    const auto last = killing_call_.find(rank);
    if (++calls_[rank]; last == killing_call_.end() || calls_[rank] < last->second) return;
    dead_.insert(rank);
    for (auto& [way, queue] : queues_)
      if (std::get<0>(way) == rank)
        while (!queue.empty() && random_() % 3 == 0) queue.pop_back();
    throw Killed();
  }
  std::set<int> dead_by_chance() {
    const std::lock_guard lock(mutex_);
    return random_() % 4 == 0 ? dead_ : std::set<int>();
  }
  void post(int from, int to, int tag, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    newest_ = Clock::now();
    auto& queue = queues_[{from, to, tag}];
    Clock::time_point arrives = Clock::now() + std::chrono::microseconds(random_() % 300);
    if (!queue.empty()) arrives = std::max(arrives, queue.back().arrives);  // messages of one queue stay in order
    queue.push_back({arrives, {bytes.begin(), bytes.end()}});
  }
  // Returns false if the sender has died and no message of it is left.
  bool take(int from, int to, int tag, std::span<std::byte> bytes) {
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
      expect_progress();
      const std::lock_guard lock(mutex_);
      auto& queue = queues_[{from, to, tag}];
      if (queue.empty() && dead_.contains(from)) return false;
      if (queue.empty() || queue.front().arrives > Clock::now()) continue;
      if (queue.front().bytes.size() != bytes.size()) throw Error("a message of another length");
      std::ranges::copy(queue.front().bytes, bytes.begin());
      queue.pop_front();
      return true;
    }
  }
  std::optional<int> sender(int to, int tag, const std::vector<int>& left_out) {
    const std::lock_guard lock(mutex_);
    std::vector<int> all;
    for (int from = 0; from < ranks_; ++from)
      if (auto& queue = queues_[{from, to, tag}]; !queue.empty() && queue.front().arrives <= Clock::now() &&
                                                  std::ranges::find(left_out, from) == left_out.end())
        all.push_back(from);
    if (all.empty()) return std::nullopt;
    return all[random_() % all.size()];
  }

  const int ranks_;
  std::mutex mutex_;
  Clock::time_point newest_ = Clock::now();  // when the newest message was sent
  std::mt19937 random_;
  std::map<std::tuple<int, int, int>, std::deque<Message>> queues_;
  std::map<int, int> killing_call_, calls_;  // by rank
  std::set<int> dead_;
  bool aborted_ = false;
};

}  // namespace ringtrain
