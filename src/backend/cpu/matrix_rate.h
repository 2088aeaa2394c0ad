// Measures how fast a rank's threads multiply matrices.
#pragma once

namespace ringtrain::cpu {

// Returns floating-point operations per second of all `threads` threads together, a multiplication and an addition
// being two. Each thread multiplies matrices of its own, as in a layer of a model. It takes about 15 ms. Ranks that
// share cores must measure at the same time. Throws Error if oneDNN lacks the product.
double measure_matrix_rate(int threads, bool bf16);

}  // namespace ringtrain::cpu
