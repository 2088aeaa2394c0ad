// The models as descriptions; each file reads like its paper's table.
#pragma once

#include <cstdint>

#include "config/experiment.h"
#include "nn/graph.h"

namespace ringtrain {

// What the data set decides: positions per sample and symbols.
struct SampleShape {
  std::int64_t sequence = 0, vocabulary = 0;
};

Graph build_model(const ModelConfig& config, const SampleShape& sample);

// One-hot symbols -> L x LSTM, dropout between -> dense at every position -> cross-entropy.
// Karpathy's char-rnn and the pet-name study (Nolis 2021): 31 symbols, 4 x 128, dropout 0.1: 482,719 parameters.
Graph char_lstm(const ModelConfig& config, const SampleShape& sample);

}  // namespace ringtrain
