// Runs the training on one rank, so that tests can compare other runs with it. Only rank 0 carries it out, and the
// other ranks sleep. With more ranks than cores, one such run on each rank would take most of a test's time.
#pragma once

#include <optional>

#include "cluster/mpi_calls.h"
#include "training_rank.h"

namespace ringtrain {

class OneRank {
 public:
  // The values of a step. Rank 0 gives them to all ranks.
  struct Step {
    Position position;
    double loss = 0, gradient_norm = 0;
  };

  // All functions are collective. The function objects given to them must not be collective.
  explicit OneRank(const Experiment& e, bool on_device = false) {
    if (session().rank() != 0) session().job().split(session().rank());
    on_0([&] { run_.emplace(e, on_device, nullptr, true); });
  }
  Step step() {
    Step made;
    on_0([&] {
      const StepReport report = run_->trainer->step({});
      made = {report.position, report.loss, report.gradient_norm};
    });
    told(std::as_writable_bytes(std::span(&made, 1)));
    return made;
  }
  std::vector<Step> steps(int count) {
    std::vector<Step> made;
    for (int i = 0; i < count; ++i) made.push_back(step());
    return made;
  }
  // Returns to all ranks a vector that `read` takes from the run on rank 0.
  template <class Read>
  auto values(const Read& read) {
    decltype(read(*run_)) found;
    on_0([&] { found = read(*run_); });
    std::size_t size = found.size();
    told(std::as_writable_bytes(std::span(&size, 1)));
    found.resize(size);
    told(std::as_writable_bytes(std::span(found)));
    return found;
  }
  std::vector<float> weights() {
    return values([](TrainingRank& run) { return run.weights(); });
  }
  // Returns the checkpoint on rank 0 and an empty one elsewhere.
  Checkpoint snapshot() {
    Checkpoint made;
    on_0([&] { made = run_->snapshot(); });
    return made;
  }

 private:
  template <class Work>
  static void on_0(const Work& work) {
    on_rank_0([&] {
      work();
      return 0;
    });
  }
  static void told(std::span<std::byte> bytes) {
    check_mpi(MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  }

  std::optional<TrainingRank> run_;  // on rank 0 only
};

}  // namespace ringtrain
