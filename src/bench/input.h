// `ringtrain bench input` measures the rates of the file system and of the loaders of every node, on all nodes at the
// same time (bench_input() in measure.h). From these it computes what the loaders of a node need for a wanted rate of
// samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// Measurements of the slowest node. Its ranks were measured at the same time.
struct NodeInput {
  double samples_per_second = 0;  // all its loaders together
  double bytes_per_second = 0;    // rate at which the data set's files were read
  int loader_threads = 1;         // all its ranks together
  int ranks = 1, cores = 1;
  int computing_threads = 1;         // all its ranks together; one per rank with GPUs
  bool images = false, raw = false;  // raw: the images are stored as decoded pixels
  std::int64_t image_size = 0, channels = 3;
};

struct InputAdvice {
  double samples_per_core = 0;                     // rate of a loader thread that has a core to itself
  std::int64_t threads = 0, threads_per_rank = 0;  // needed for the wanted rate; the same on every rank
  std::int64_t free_cores = 0;                     // not used by computing threads, at least 0
  bool loaders_do = false;                         // whether there are enough cores: threads <= free_cores
  std::int64_t decoded_size = 0;                   // side of a decoded data set's images, in pixels
  double decoded_bytes_per_second = 0;             // needed to read such a data set
  bool files_do = false;                           // whether the files were read at least that fast
};

// Loader threads share the cores of the node. The rate of one thread is the rate of all, divided by the number of
// threads or of cores, whichever is smaller. The side of a decoded data set's images is 8/7 of the input's side, so
// that crops are possible (256 pixels for 224). Each channel of a pixel takes one byte.
InputAdvice input_advice(const NodeInput& node, double wanted_samples_per_second);

// Returns the advice as lines: JPEGs or a decoded data set, and the number of loader threads per rank.
std::vector<std::string> input_advice_lines(const NodeInput& node, double wanted_samples_per_second);

}  // namespace ringtrain
