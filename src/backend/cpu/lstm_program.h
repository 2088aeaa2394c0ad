// A graph of LSTM layers compiled for the CPU: operations in order, one arena.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// `slots`: micro-batches in flight.
std::unique_ptr<Program> compile_lstm_program(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                              PassMode mode, int threads, Isa isa, MemoryCount count, int slots = 1);

// Blocks for `rows` rows: at most 64 rows each (measured: products of 32 rows and more run at full speed, and a block's
// gates stay in the second-level cache), as many for every thread.
RowBlocks row_blocks(std::int64_t rows, std::int64_t sequence, int threads);

}  // namespace ringtrain::cpu
