#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rounding.h"

namespace ringtrain {

namespace {

std::vector<int> owners_of(const std::vector<MatrixRange>& matrices, int ranks) {
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return matrices[i].cost(); });
  std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
  std::vector<int> owners(matrices.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += matrices[i].cost();
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

}  // namespace

bool is_muons(const Parameter& p) {
  return p.kind == ParameterKind::weight && !p.is_outer && p.shape.size() >= 2;
}

MatrixRange matrix_of(const Parameter& p, std::int64_t begin) {
  return {begin, p.shape[0], p.count / p.shape[0]};
}

double muon_rate_factor(const std::string& form, const MatrixRange& m) {
  const auto rows = static_cast<double>(m.rows), columns = static_cast<double>(m.columns);
  return form == "original" ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
}

std::vector<MatrixRange> MuonLayout::of(int rank) const {
  std::vector<MatrixRange> mine;
  for (std::size_t i = 0; i < matrices.size(); ++i)
    if (owners[i] == rank) mine.push_back(matrices[i]);
  return mine;
}

MuonLayout muon_layout(const ParameterTable& parameters, int ranks) {
  MuonLayout layout;
  for (const Parameter& p : parameters.all())
    if (is_muons(p)) layout.matrices.push_back(matrix_of(p, 0));
  layout.owners = owners_of(layout.matrices, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = layout.size;
    for (std::size_t i = 0; i < layout.matrices.size(); ++i) {
      if (layout.owners[i] != rank) continue;
      layout.matrices[i].begin = layout.size;
      layout.size += round_up(layout.matrices[i].count(), tensor_alignment);
    }
    layout.shares.push_back({begin, layout.size});
  }
  return layout;
}

}  // namespace ringtrain
