// Compiles a graph of LSTM layers for the CPU. The result is a list of operations that share one arena (nn/arena.h).
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// `slots`: micro-batches in flight.
std::unique_ptr<Program> compile_lstm_program(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                              PassMode mode, int threads, Isa isa, MemoryCount count, int slots = 1);

// Divides `rows` rows into blocks of at most 64 rows, with the same number of blocks for every thread. Measurements
// show that products of 32 or more rows run at full speed, and that the gates of such a block stay in the second-level
// cache.
RowBlocks row_blocks(std::int64_t rows, std::int64_t sequence, int threads);

}  // namespace ringtrain::cpu
