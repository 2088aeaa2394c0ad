// How threads lie over [rows, channels]: each keeps its eight neighbouring channels and walks down the rows, so that
// what belongs to a channel is loaded once. Host and device must agree on it.
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

constexpr int finalize_channels = 32, finalize_parts = 16;  // threads of a block: channels x parts of the partial sums
constexpr int column_sum_threads = 512;
constexpr int reorder_tile = 32;
constexpr int image_rows = 65535;              // most blocks in y and z; kernels walk over the rest
constexpr int norm_chunk = 32 * tile_threads;  // elements of a block that measures a range
constexpr int copy_chunk = 16 * tile_threads;  // elements of a block, of a plain copy
constexpr int copy_tile = 2304;                // of a copy that changes the order of taps and inner

// Inner elements, all taps each, of one block of such a copy.
RINGTRAIN_HD int copy_width(int taps) {
  return copy_tile / taps;
}

}  // namespace ringtrain::cuda
