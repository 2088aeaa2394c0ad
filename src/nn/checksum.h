// The checksum with which ranks compare their copies of a vector. CPUs and GPUs use the same formula.
//
// The checksum is the sum, modulo 2^64, of checksum_term() over all 64-bit words (two fp32 values each). The sum has
// the same bits in any order, so threads and blocks may add in any order. A term is a bijection of its word. A change
// within one word, such as a flipped bit, is therefore always found. Other changes are missed once in 2^64 cases.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain {

// Applies the finalizer of MurmurHash3 (Appleby 2011) to a word. The index of the word is mixed in, so that an exchange
// of two words is detected.
RINGTRAIN_HD std::uint64_t checksum_term(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = word ^ (index * 0x9E3779B97F4A7C15u);
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

}  // namespace ringtrain
