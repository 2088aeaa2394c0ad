// Quasi-random points, which fill a cube evenly. A study draws the values of keys from them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtrain {

inline constexpr std::size_t most_drawn_keys = 10;  // dimensions

// Coordinate `dimension` (from 0) of point `index` (from 0) of Sobol's sequence, as a fraction of 2^32; in the order of
// Gray codes (Antonov and Saleev 1979), with the direction numbers of Joe and Kuo 2008 (new-joe-kuo-6). Point 0 is 0.
std::uint32_t sobol(std::uint32_t index, std::size_t dimension);

// The radical inverse of index in the base of that dimension: 2, 3, 5, 7, ... (Halton 1960). Point 0 is 0.
double halton(std::uint64_t index, std::size_t dimension);

enum class Sequence { sobol, halton, random };

// In (0, 1), a pure function of its arguments: a study that draws more points keeps those it had. The seed moves
// Sobol's points by a digital shift (they stay a net) and Halton's by a rotation (Cranley and Patterson 1976).
double drawn(Sequence sequence, std::uint64_t seed, std::uint32_t index, std::size_t dimension);

}  // namespace ringtrain
