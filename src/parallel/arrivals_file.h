// arrivals.csv in the folder of an asynchronous run: which worker computed each update, and from which version of the
// weights, in the order in which the updates were applied. parallel.replay takes such a file.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "parallel/update_order.h"

namespace ringtrain {

// Those of the steps after `after_step`. Throws Error where the file cannot be read or has another form.
std::vector<Arrival> read_arrivals(const std::string& path, std::int64_t after_step);

// Updates by staleness.
std::map<std::int64_t, std::int64_t> staleness_histogram(const std::vector<Arrival>& arrivals);

class ArrivalsFile {
 public:
  // Goes on with the file in this folder, without what it says about steps after `after_step`. Throws Error.
  ArrivalsFile(const std::string& run_dir, std::int64_t after_step);
  void add(const Arrival& arrival);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace ringtrain
