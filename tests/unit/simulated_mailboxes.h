// Simulates a network between ranks that are threads. Every message is delayed, and messages of different senders or
// tags overtake each other, at random by a seed.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "cluster/links.h"

namespace ringtrain {

struct Aborted {};  // thrown on all ranks after abort()

class SimulatedNetwork {
 public:
  SimulatedNetwork(int ranks, unsigned seed) : ranks_(ranks), random_(seed) {}
  std::unique_ptr<Mailbox> mailbox(int rank) { return std::make_unique<Box>(*this, rank); }
  // An error on one rank ends all ranks.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    Clock::time_point arrives;
    std::vector<std::byte> bytes;
  };
  class Box : public Mailbox {
   public:
    Box(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return network_.ranks_; }
    void send(int to, int tag, std::span<const std::byte> bytes) override {
      if (!bytes.empty()) network_.post(rank_, to, tag, bytes);
    }
    void start_sending(int to, int tag, std::span<const std::byte> bytes) override { send(to, tag, bytes); }
    void finish_sending() override {}
    void receive(int from, int tag, std::span<std::byte> bytes) override {
      if (!bytes.empty()) network_.take(from, rank_, tag, bytes);
    }
    std::optional<int> sender_of_waiting(int tag) override { return network_.sender(rank_, tag); }
    void pause() override {
      network_.expect_progress();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

   private:
    SimulatedNetwork& network_;
    int rank_;
  };

  // If no message has been sent for long, all ranks wait for each other.
  void expect_progress() {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted();
    if (Clock::now() - newest_ > std::chrono::seconds(5)) throw Error("all ranks wait for ever");
  }
  void post(int from, int to, int tag, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    newest_ = Clock::now();
    auto& queue = queues_[{from, to, tag}];
    Clock::time_point arrives = Clock::now() + std::chrono::microseconds(random_() % 300);
    if (!queue.empty()) arrives = std::max(arrives, queue.back().arrives);  // messages of one queue stay in order
    queue.push_back({arrives, {bytes.begin(), bytes.end()}});
  }
  void take(int from, int to, int tag, std::span<std::byte> bytes) {
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
      expect_progress();
      const std::lock_guard lock(mutex_);
      auto& queue = queues_[{from, to, tag}];
      if (queue.empty() || queue.front().arrives > Clock::now()) continue;
      if (queue.front().bytes.size() != bytes.size()) throw Error("a message of another length");
      std::ranges::copy(queue.front().bytes, bytes.begin());
      queue.pop_front();
      return;
    }
  }
  std::optional<int> sender(int to, int tag) {
    const std::lock_guard lock(mutex_);
    std::vector<int> all;
    for (int from = 0; from < ranks_; ++from)
      if (auto& queue = queues_[{from, to, tag}]; !queue.empty() && queue.front().arrives <= Clock::now())
        all.push_back(from);
    if (all.empty()) return std::nullopt;
    return all[random_() % all.size()];
  }

  const int ranks_;
  std::mutex mutex_;
  Clock::time_point newest_ = Clock::now();  // when the newest message was sent
  std::mt19937 random_;
  std::map<std::tuple<int, int, int>, std::deque<Message>> queues_;
  bool aborted_ = false;
};

}  // namespace ringtrain
