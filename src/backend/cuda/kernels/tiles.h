// This file maps threads to [rows, channels]. A thread keeps eight neighbouring channels (an octet) and walks down the
// rows, so it loads the values of its channels once. Host and device code share these functions and must agree.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain::cuda {

constexpr int tile_threads = 256;

RINGTRAIN_HD int octets_of(int channels) {
  return channels / 8 + (channels % 8 != 0);
}
RINGTRAIN_HD int tile_columns(int octets) {
  return octets < tile_threads ? octets : tile_threads;
}
RINGTRAIN_HD int tile_rows(int octets) {
  return tile_threads / tile_columns(octets);
}
// A block that adds partial sums up has channels x parts threads. It has few channels, so that 64 channels are eight
// blocks. Eight floats are 32 bytes, the least that memory delivers.
constexpr int finalize_channels = 8, finalize_parts = 64;
constexpr int reorder_tile = 32;
constexpr int image_rows = 65535;              // the largest number of blocks in y and z; kernels loop over the rest
constexpr int norm_chunk = 32 * tile_threads;  // elements per block of a kernel that sums over a range
constexpr int copy_chunk = 16 * tile_threads;  // elements per block of a plain copy
constexpr int copy_tile = 2304;                // elements per block of a copy that swaps taps and inner

// Returns the number of inner elements, each with all taps, in one block of such a copy.
RINGTRAIN_HD int copy_width(int taps) {
  return copy_tile / taps;
}

}  // namespace ringtrain::cuda
