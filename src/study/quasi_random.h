// Quasi-random points, which fill a cube evenly. A study draws the values of keys from them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtrain {

inline constexpr std::size_t most_drawn_keys = 10;  // the number of dimensions

// Returns coordinate `dimension` (from 0) of point `index` (from 0) of Sobol's sequence, multiplied by 2^32. The points
// are in Gray code order (Antonov and Saleev 1979). The direction numbers are those of Joe and Kuo 2008
// (new-joe-kuo-6). Point 0 is 0.
std::uint32_t sobol(std::uint32_t index, std::size_t dimension);

// Returns the radical inverse of `index` (Halton 1960). The bases of the dimensions are the primes 2, 3, 5, 7, ...
// Point 0 is 0.
double halton(std::uint64_t index, std::size_t dimension);

enum class Sequence { sobol, halton, random };

// Returns a number in (0, 1) that depends only on the arguments, so a study that draws more points keeps its earlier
// points. The seed changes Sobol's points by a digital shift (an XOR of the bits), after which they fill the cube as
// evenly as before. It changes Halton's points by a rotation: it adds a number, modulo 1 (Cranley and Patterson 1976).
double drawn(Sequence sequence, std::uint64_t seed, std::uint32_t index, std::size_t dimension);

}  // namespace ringtrain
