#include "backend/orthogonalizer.h"

#include "base/error.h"

namespace ringtrain {

void expect_matrices(std::span<const MatrixRange> matrices) {
  for (const MatrixRange& m : matrices)
    if (m.begin < 0 || m.rows < 1 || m.columns < 1)
      throw Error(cat("a ", m.rows, " x ", m.columns, " matrix at element ", m.begin,
                      " cannot be orthogonalised, expected at least 1 row, 1 column and an element from 0"));
}

}  // namespace ringtrain
