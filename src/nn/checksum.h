// The checksum by which ranks compare their copies of a vector: one formula for CPUs and GPUs.
//
// The sum, modulo 2^64, of checksum_term() over all 64-bit words (two fp32 values each). A sum has the same bits in any
// order, so threads and blocks add as they come. A term is a bijection of its word: a change inside one word, such as a
// flipped bit, always shows; other changes are missed once in 2^64.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain {

// The finalizer of MurmurHash3 (Appleby 2011), with the word's place mixed in: values that have changed places show.
RINGTRAIN_HD std::uint64_t checksum_term(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = word ^ (index * 0x9E3779B97F4A7C15u);
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

}  // namespace ringtrain
