// What the loaders of a node must do for a wanted rate of samples, from what they were measured to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// Of the slowest node; its ranks measured at the same time.
struct NodeInput {
  double samples_per_second = 0;  // of all its loaders
  double bytes_per_second = 0;    // from the data set's files
  int loader_threads = 1;         // of its ranks together
  int ranks = 1, cores = 1;
  int computing_threads = 1;         // of its ranks together: one each where a GPU computes
  bool images = false, raw = false;  // raw: stored decoded
  std::int64_t image_size = 0, channels = 3;
};

struct InputAdvice {
  double samples_per_core = 0;                     // a loader thread that has a core for itself
  std::int64_t threads = 0, threads_per_rank = 0;  // that the wanted rate takes; whole on every rank
  std::int64_t free_cores = 0;                     // that the computing threads leave, at least 0
  bool loaders_do = false;                         // threads <= free_cores
  std::int64_t decoded_size = 0;                   // pixels of the side of a decoded data set's images
  double decoded_bytes_per_second = 0;             // that it would be read with
  bool files_do = false;                           // they gave as much
};

// Loaders share the cores that there are: one thread's rate is that of all by the threads or by the cores, whichever
// are fewer. A decoded data set keeps a margin of 8/7 for crops (256 pixels for 224), one byte a channel.
InputAdvice input_advice(const NodeInput& node, double wanted_samples_per_second);

// Which input the node needs, in lines: JPEGs or a decoded data set, how many threads of each rank.
std::vector<std::string> input_advice_lines(const NodeInput& node, double wanted_samples_per_second);

}  // namespace ringtrain
