// This folder compiles the graph of an LSTM language model to a program for a GPU. model.cpp reads the model from the
// graph and maps PyTorch's weights to cuDNN's weight space. choice.cpp chooses the calls of cuDNN that compute the LSTM
// layers. program.cpp adds the commands to the schedule; begin reading there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// `slots` is the number of micro-batches in flight. Throws Error when the graph is not such a model.
std::unique_ptr<Program> make_lstm_program(Device& device, const BackendOptions& options, const Graph& graph,
                                           std::int64_t micro_batch, Precision precision, PassMode mode, int slots);

// LstmModel is a model that this folder compiles: a stack of LSTM layers on one-hot symbols, a dense layer at every
// position and softmax cross-entropy, or a part of such a model.
struct LstmModel {
  bool is_first = true, is_last = true;  // whether it begins with the symbols; whether it ends with the loss
  std::int64_t vocabulary = 0, hidden = 0;
  std::vector<Lstm> layers;
  std::vector<Dropout> dropouts;  // after each layer; probability 0 means none
  std::vector<bool> recomputed;   // for each layer: whether the backward pass recomputes it
  Dense dense;
  CrossEntropy loss;
};

// Reads the model from a graph. Throws Error when the graph is no such model.
LstmModel lstm_model(const Graph& graph);

// Maps the tensors of LSTM layers from the flat vector, in PyTorch's order, to the weight space of a recurrent plan of
// cuDNN. Returns a place for every tensor of `plan`, which computes `layers` in this order. Throws Error when cuDNN's
// tensors do not match the layers.
std::vector<TensorPlace> lstm_places(const RnnPlan& plan, std::span<const Lstm> layers, const ParameterTable& table);

// Chooses the recurrent calls that compute a stack of LSTM layers: one call for all layers or one call per layer, and
// cuDNN's algorithm for each call. `stack` describes all layers. `joinable` says that no dropout lies between the
// layers. Returns one plan for all layers, or one plan per layer in order. Throws Error with cuDNN's reason when even
// the standard algorithm has no plan.
std::vector<const RnnPlan*> choose_lstm_plans(Device& device, FusionTable& table, const RnnOperation& stack,
                                              bool joinable);

}  // namespace ringtrain::cuda
