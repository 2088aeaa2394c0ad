// The communicator for host memory of one rank whose partners do not exist. Messages that it sends arrive nowhere, and
// the test decides what it receives.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "backend/norm_team.h"
#include "base/error.h"
#include "cluster/communicator.h"

namespace ringtrain {

class ScriptedHost final : public Communicator {
 public:
  ScriptedHost(int rank, int size) : rank_(rank), size_(size) {}
  double added_by_others = 0;            // to every counter
  std::string text_of_rank_0;            // result of broadcast_string(), unless empty
  std::vector<std::byte> bytes_of_root;  // result of a broadcast of this length
  std::function<void(std::span<float>)> sum_over_ranks;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override { return "a script"; }
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    if (before) before(0);
    if (sum_over_ranks) sum_over_ranks(values);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_sum(std::span<double> values) override {
    for (double& v : values) v += added_by_others;
    return std::make_unique<Done>();
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    if (root == rank_) return;
    if (!bytes.empty() && bytes.size() == bytes_of_root.size()) {
      std::ranges::copy(bytes_of_root, bytes.begin());
      return;
    }
    const bool is_id = bytes.size() == 128 && text_of_rank_0.size() != 128;
    if (is_id) std::ranges::fill(bytes, std::byte{'x'});
    if (is_id || text_of_rank_0.empty()) return;
    const std::uint64_t length = text_of_rank_0.size();
    std::memcpy(bytes.data(), bytes.size() == sizeof length ? static_cast<const void*>(&length) : text_of_rank_0.data(),
                bytes.size());
  }
  // What no test asks for.
  void* allocate(std::int64_t) override { throw Error("a script has no memory"); }
  void release(void*) override {}
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float>, std::int64_t, const BeforeSum&) override {
    throw Error("a script has no reduce-scatter");
  }
  std::unique_ptr<Pending> start_all_gather(std::span<float>, std::int64_t) override {
    throw Error("a script has no all-gather");
  }
  std::unique_ptr<Pending> start_root_sum(std::span<float>, int, const BeforeSum&) override {
    throw Error("a script has no sum on one rank");
  }
  std::unique_ptr<Pending> start_broadcast(std::span<float>, int) override {
    throw Error("a script has no broadcast in the background");
  }
  std::unique_ptr<NormTeam> make_norm_team(int) override { throw Error("a script has no teams"); }
  void gather(std::span<const std::byte>, std::span<std::byte>, int) override {}
  void scatter(std::span<const std::byte>, std::span<std::byte>, int) override {}
  void barrier() override {}

 private:
  struct Done final : Pending {
    bool done() override { return true; }
  };
  int rank_, size_;
};

}  // namespace ringtrain
