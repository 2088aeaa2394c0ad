// Descriptions of the models. Each function reads like the table in the model's paper.
//
// build_model() makes the Graph (nn/graph.h) of the model that model.kind names. A model is a function that adds nodes
// to a Graph; it contains no code for a device. To add a model, write such a function in models.cpp, declare it here,
// add it to describe() there, and its name and its keys to config/schema.cpp and config/experiment.h. char_lstm() is
// the shortest example.
#pragma once

#include <cstdint>

#include "config/experiment.h"
#include "nn/graph.h"

namespace ringtrain {

// The shapes that follow from the data set.
struct SampleShape {
  std::int64_t sequence = 0, vocabulary = 0;  // text: positions per sample, symbols
  std::int64_t image_size = 0, classes = 0;   // images: u8 [image_size, image_size, mean.size()]
  std::vector<double> mean = {}, std = {};    // per channel, of pixels / 255
};

// Returns whether the model takes images. Otherwise it takes text.
bool takes_images(const ModelConfig& config);

// Throws Error if the model does not fit the kind of data. The hint names the models that do.
void check_model_fits(const ModelConfig& config, bool images);

// Makes the graph after check_model_fits(), and gives the weights the initial values that model.initial names. The
// functions below give the initial values of model.initial: he.
Graph build_model(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss = {});

// One-hot symbols -> L x LSTM with dropout between them -> dense at every position -> cross-entropy. This is Karpathy's
// char-rnn and the model of the pet-name study (Nolis 2021): 31 symbols, 4 x 128, dropout 0.1, 482,719 parameters.
Graph char_lstm(const ModelConfig& config, const SampleShape& sample);

// The ResNets of He et al. 2015. Table 1 has the depths 18 and 34 (basic blocks) and 50, 101 and 152 (bottlenecks).
// ResNet-50 has 25,557,032 parameters. The stride of a bottleneck is in its 3 x 3 convolution (version 1.5, as in
// torchvision). With stride_in: 1x1 the stride is in its first 1 x 1 convolution (version 1, as in the paper's models).
//
// Section 4.2 has the networks for CIFAR, with the depths 6n + 2: 8, 20, 32, 44, 56 and 110. They have three stages of
// n basic blocks, and 16 channels in the first stage. In the paper, a shortcut to a smaller map pads the missing
// channels with zeros (option A). Here it is a projection (option B), as in the other depths.
//
// Tensors have torchvision's names. Group norms are named bn1 and so on, too, as in torchvision's ResNet with
// norm_layer=GroupNorm. Without norms, the convolutions have biases.
Graph resnet(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss);

// The AlexNet of Krizhevsky 2014 ("one weird trick"), as in torchvision. It has 61,100,840 parameters for 1000 classes
// and images of 224 x 224. With model.norm, batch norm comes after every convolution, and convolutions have no bias.
// Dropout stays before the dense layers. This is the AlexNet-BN on which LARS was tested (You et al. 2017; B. Ginsburg,
// nvcaffe, models/alexnet_bn). Its tensors follow torchvision's names for vgg16_bn.
Graph alexnet(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss);

// Convolutions (model.channels, model.kernel) that keep height and width, with ReLU and 2 x 2 max pooling after each,
// then hidden dense layers (model.widths) with ReLU and dropout, and the classifier: a small network for images of
// CIFAR's size. The Simple CNN of Shallue et al. 2019 has channels [32, 64], kernel 5, widths [1024] and dropout 0.4.
// With norms, conv1 has no bias, and bn1 lies between it and its ReLU. Dense layers have no norm.
Graph cnn(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss);

// Hidden dense layers (model.widths) with ReLU and dropout on all pixels, and the classifier. Smith and Le 2018 have
// widths [800]. With norms, fc1 has no bias, and bn1 lies between it and its ReLU. F1 of Keskar et al. 2017 has widths
// [512, 512, 512, 512, 512] and batch norm.
Graph mlp(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss);

}  // namespace ringtrain
