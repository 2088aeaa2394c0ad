#include "bench/input_advice.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {

InputAdvice input_advice(const NodeInput& node, double wanted) {
  InputAdvice a;
  a.samples_per_core = node.samples_per_second / std::max(1, std::min(node.loader_threads, node.cores));
  const double of_rank = wanted / node.ranks;
  a.threads_per_rank = static_cast<std::int64_t>(std::ceil(of_rank / a.samples_per_core - 1e-9));
  a.threads = a.threads_per_rank * node.ranks;
  a.free_cores = std::max(0, node.cores - node.computing_threads);
  a.loaders_do = a.threads <= a.free_cores;
  a.decoded_size = (node.image_size * 8 + 6) / 7;
  a.decoded_bytes_per_second = wanted * static_cast<double>(a.decoded_size * a.decoded_size * node.channels);
  a.files_do = a.decoded_bytes_per_second <= node.bytes_per_second;
  return a;
}

std::vector<std::string> input_advice_lines(const NodeInput& node, double wanted) {
  const auto rate = [](double samples) { return with_thousands(std::llround(samples)); };
  if (!(node.samples_per_second > 0)) return {};
  const InputAdvice a = input_advice(node, wanted);
  std::vector<std::string> lines = {cat("one loader thread on a core: ", rate(a.samples_per_core), " samples/s")};
  if (!(wanted > 0)) {
    lines.push_back("use --wanted RATE to see how many loader threads a node needs for RATE samples/s");
    return lines;
  }
  lines.push_back(cat(rate(wanted), " samples/s of a node take ", counted(a.threads, "loader thread"),
                      " (data.loader_threads: ", a.threads_per_rank, " on each of ", counted(node.ranks, "rank"), "); ",
                      a.free_cores, " of its ", counted(node.cores, "core"),
                      a.free_cores == 1 ? " is free" : " are free"));
  const std::string kind = !node.images ? "this data set"
                           : node.raw   ? "this decoded data set"
                                        : "JPEGs, decoded on its cores,";
  if (a.loaders_do) {
    lines.push_back(cat(kind, " will do"));
  } else if (!node.images || node.raw) {
    lines.push_back(cat(kind, " will not do: ", rate(a.samples_per_core * static_cast<double>(a.free_cores)),
                        " samples/s is what its free cores load"));
  } else {
    lines.push_back(cat(kind, " will not do (", rate(a.samples_per_core * static_cast<double>(a.free_cores)),
                        " samples/s): it needs a decoded data set, bin/ringtrain-data images ... --size ",
                        a.decoded_size, " --encoding raw"));
    lines.push_back(cat("which is read with ", readable_bytes(a.decoded_bytes_per_second), "/s; the files gave ",
                        readable_bytes(node.bytes_per_second), "/s",
                        a.files_do ? "" : ": too slow, unless the node's memory or a local disk holds it"));
  }
  return lines;
}

}  // namespace ringtrain
