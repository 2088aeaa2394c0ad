// Tests Muon's matrices, which different ranks orthogonalise and then gather.
#include "tests/unit/optimizer_training.h"
#include "training_rank.h"

namespace ringtrain {
namespace {

ParameterTable some_matrices() {
  ParameterTable table;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, ParameterKind kind, bool outer) {
    Parameter p{name, std::move(shape), kind, InitialValues::normal, 0.3};
    p.is_outer = outer;
    table.append(p);
  };
  add("last.weight", {5, 20}, ParameterKind::weight, true);
  for (int i = 0; i < 5; ++i) {
    add(cat("conv", i, ".weight"), {20 + 7 * i, 6, 3, 3}, ParameterKind::weight, false);
    add(cat("norm", i, ".weight"), {20 + 7 * i}, ParameterKind::norm, false);
  }
  add("first.weight", {20, 3}, ParameterKind::weight, true);
  return table;
}

// Returns the weights after four updates from the same gradients on all ranks. The gradient of the third update is not
// finite.
std::vector<double> trained(Backend& backend, UpdateRanks ranks) {
  const ParameterTable table = some_matrices();
  Training training(backend, table, {.kind = "muon", .weight_decay = 0.1}, std::move(ranks));
  std::vector<float> flat(static_cast<std::size_t>(table.size()));
  initialize(table, 3, flat);
  backend.copy_from_host(flat, *training.weights, 0);
  for (std::uint64_t step = 0; step < 4; ++step) {
    initialize(table, 10 + step, flat);
    if (step == 2) flat[0] = INFINITY;
    backend.copy_from_host(flat, *training.gradients, 0);
    EXPECT_EQ(training.update({0.1}).applied, step != 2);
  }
  return training.get(*training.weights);
}

TEST(MuonOnRanks, HasTheBitsOfOneRank) {
  for (const int threads : {1, 2}) {
    const auto alone = make_cpu_backend(1), together = make_cpu_backend(threads);
    const auto ring = make_mpi_communicator(session().job(), 1 << 12);
    EXPECT_EQ(trained(*together, {ring->rank(), ring->size(),
                                  [&](std::span<float> values, int root) { ring->broadcast_vector(values, root); }}),
              trained(*alone, {}));
  }
}

TEST(MuonOnRanks, HasTheBitsOfOneRankOnDevices) {
  const auto ring = make_mpi_communicator(session().job(), 1 << 12);
  cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}}), own;
  const auto staged = make_staged_communicator(device, *ring);
  const auto together = cuda::make_backend(device, {}), alone = cuda::make_backend(own, {});
  EXPECT_EQ(trained(*together, {ring->rank(), ring->size(),
                                [&](std::span<float> values, int root) { staged->broadcast_vector(values, root); }}),
            trained(*alone, {}));
}

}  // namespace
}  // namespace ringtrain
