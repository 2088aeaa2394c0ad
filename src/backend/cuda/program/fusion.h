// Which fusion each layer takes: a table, not code paths by hand. Filled from what a device can plan and, on a real
// device, from a timing run; kept with the run and in a cache so that a resumed run takes the same kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// One place in the network where kernels may be joined.
struct FusionSite {
  std::string name;  // "layer1.0.conv1 forward"
  // Ways to compute it, best guess first; the last one always exists: plain plans and own kernels.
  struct Way {
    std::string name;                            // "sums in the epilogue", "separate"
    std::vector<DnnOperation> operations;        // that must find a plan
    std::vector<RnnOperation> recurrent = {};    // likewise
    double bytes = 0;                            // of memory traffic: decides where nothing is timed
    std::function<void(Device&, Stream)> trial;  // on scratch memory; empty: cannot be timed alone
  };
  std::vector<Way> ways;
  std::string key() const;  // of the shapes: equal sites share one choice
};

struct FusionChoice {
  std::string site, way;
  double seconds = 0;   // 0: not timed
  std::string refused;  // ways before it that found no plan, and why
};

class FusionTable {
 public:
  // `seconds`: limit of the search; sites that are not reached keep their guess.
  explicit FusionTable(double seconds_limit = 60) : limit_(seconds_limit) {}
  // Index of the way to take.
  std::size_t choose(Device& device, const FusionSite& site);
  const std::vector<FusionChoice>& choices() const { return choices_; }

  // One text for broadcast, cache and run record; load() throws Error naming the line it does not understand.
  std::string text() const;
  void load(const std::string& text);
  // The same of earlier runs' searches: taken for sites that load() has not named. text() then holds those in use.
  void load_kept(const std::string& text);

 private:
  double limit_;
  double spent_ = 0;
  std::vector<FusionChoice> choices_;
  std::map<std::string, FusionChoice> by_key_;  // device, cuDNN and site key
  std::map<std::string, FusionChoice> kept_;    // likewise
};

}  // namespace ringtrain::cuda
