// Decides which tensors Muon (Jordan 2024) orthogonalises, and which rank orthogonalises each of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/vector_operations.h"
#include "nn/parameters.h"

namespace ringtrain {

// Returns whether Muon updates this tensor: a weight with two or more dimensions that is in neither the first nor the
// last layer.
bool is_muons(const Parameter& parameter);

// Returns the tensor as a matrix. Dense layers are [out, in]. Convolutions are [out, in x kernel x kernel]. An LSTM's
// four gates form one matrix [4 hidden, input], as they are stored; torch.optim.Muon treats torch.nn.LSTM the same way.
MatrixRange matrix_of(const Parameter& parameter, std::int64_t begin);

// Returns the factor of a matrix's learning rate (optimizer.muon_rate):
//   original         sqrt(max(1, rows / columns))
//   match_rms_adamw  0.2 sqrt(max(rows, columns))
double muon_rate_factor(const std::string& form, const MatrixRange& matrix);

// The layout of a flat vector that contains only Muon's matrices. The matrices of each rank are next to each other, so
// that one broadcast shares them.
struct MuonLayout {
  std::vector<MatrixRange> matrices;  // in the order of the parameter table
  std::vector<int> owners;            // the rank that orthogonalises each matrix
  std::vector<ElementRange> shares;   // the elements of each rank; begin = end: the rank has no matrix
  std::int64_t size = 0;              // number of elements
  std::vector<MatrixRange> of(int rank) const;
};

// Assigns the matrices to the ranks. The costliest matrix comes first, and each matrix goes to the rank with the least
// work so far. See MatrixRange::cost().
MuonLayout muon_layout(const ParameterTable& parameters, int ranks);

// The ranks of a run that share the work of an update.
struct UpdateRanks {
  int rank = 0, size = 1;
  // Collective. Sends values of a backend vector from rank `root` to all ranks.
  std::function<void(std::span<float> values, int root)> broadcast = {};
};

}  // namespace ringtrain
