// FusionTable chooses how each layer is fused. A way is one of several sequences of operations and kernels that compute
// the same result. The choice of a way is data in a table, not code. It depends on which plans a device has and, on a
// real device, on timing. The table is saved with the run and in a cache, so a resumed run uses the same kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/device.h"
#include "base/clock.h"

namespace ringtrain::cuda {

// Holds a part of the work of a way. A part is timed by itself. `run` owns the scratch memory that it uses.
struct TrialPart {
  std::string what;  // parts with equal `what` take equal time, so one of them is timed; empty: always timed
  std::function<void(Device&, Stream)> run;
};

// Describes one place in the network where kernels may be fused.
struct FusionSite {
  std::string name;  // "layer1.0.conv1"
  // Ways to compute the site. Without timing, the way with the least memory traffic is taken, and the first of equal
  // ones. The last way always exists: it uses plain plans and the program's own kernels. A way with operations of
  // another engine than Engine::general is taken only when it was timed on the device and computed there what cuDNN's
  // plain operations compute (proof.h).
  struct Way {
    std::string name;                           // "statistics in the epilogue"
    std::vector<DnnOperation> operations = {};  // each must have a plan
    std::vector<RnnOperation> recurrent = {};   // each must have a plan, too
    double bytes = 0;                           // memory traffic; decides when nothing is timed
    double flops = 0;
    // Returns the parts to be timed; they hold scratch memory. The time of the way is the sum over its parts. When the
    // function or its result is empty, the way cannot be timed.
    std::function<std::vector<TrialPart>(Device&)> trial = {};
  };
  std::vector<Way> ways = {};
  std::string key() const;  // made from the shapes, so that equal sites share one choice
};

// Returns a site whose only way is these operations. Their plans are timed like those of other sites.
FusionSite only_way(const std::string& name, const std::vector<DnnOperation>& operations);

struct FusionChoice {
  std::string site, way = {};
  double seconds = 0;                  // 0: not timed, or the limits ended the timing of this site
  std::string refused = {};            // ways without a plan, with a wrong result or with an error, and the reasons
  std::string key = {};                // key of the line in text()
  std::vector<std::string> ways = {};  // all ways of the site; not in text()
};

class FusionTable {
 public:
  // `seconds_limit` is the device time for timing plans and ways. The time to make plans does not count there.
  // `deadline_seconds` is the time by `clock` that all calls of choose() may take together, the making of plans
  // included. What was begun is finished. A site that is not reached within both limits keeps its guess. `clock` is
  // called from several threads.
  explicit FusionTable(double seconds_limit = 60, double deadline_seconds = std::numeric_limits<double>::infinity(),
                       std::function<double()> clock = now_seconds)
      : limit_(seconds_limit), left_(deadline_seconds), clock_(std::move(clock)) {}
  // Returns the index of the way to take for each site. Unknown sites are timed in the order of the time that they are
  // expected to take in a step, longest first. Equal sites count together. A way that throws Error is refused. Throws
  // Error when a site cannot be computed, and when an error leaves the device unusable. text() then has the way that
  // did so, and a table that loads it refuses that way.
  std::vector<std::size_t> choose(Device& device, std::span<const FusionSite> sites);
  std::size_t choose(Device& device, const FusionSite& site) { return choose(device, {&site, 1}).front(); }
  // Returns the choices for sites with more than one way, in the order in which they were asked.
  const std::vector<FusionChoice>& choices() const { return choices_; }
  // choose() calls `keep` after each site that was timed, and before it throws because the device was lost.
  void after_each_site(std::function<void(const FusionTable&)> keep) { keep_ = std::move(keep); }

  // text() returns the table as one text, for broadcast, cache and the run's record. load() throws Error that names the
  // line it does not understand.
  std::string text() const;
  void load(const std::string& text);
  // Loads choices of earlier runs. They apply to sites that load() has not named. text() then contains those that are
  // in use.
  void load_kept(const std::string& text);

 private:
  FusionChoice make_choice(Device& device, const FusionSite& site, bool timed);
  void tune(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways, FusionChoice& choice);
  std::size_t fastest(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways,
                      FusionChoice& choice);
  // Records that the way lost the device, and throws Error.
  [[noreturn]] void never_again(Device& device, const FusionSite& site, std::size_t way, const std::string& what);
  bool was_lost(const std::string& key, const std::string& way) const;
  void read(const std::string& text, std::map<std::string, FusionChoice>& choices);
  double time(Device& device, const FusionSite::Way& way);
  const std::string& disproof(Device& device,
                              const FusionSite::Way& way);  // "" when the way's operations compute the right result
  bool spent() const { return spent_ >= limit_ || clock_() >= deadline_; }

  double limit_;
  double spent_ = 0;  // seconds of device time
  double left_;       // seconds by the clock for the later calls of choose()
  std::function<double()> clock_;
  double deadline_ = std::numeric_limits<double>::infinity();  // of this call of choose(), by the clock
  std::function<void(const FusionTable&)> keep_;
  std::vector<FusionChoice> choices_;
  std::map<std::string, FusionChoice> by_key_;                      // key: device, cuDNN and site key
  std::map<std::string, FusionChoice> kept_;                        // key: the same
  std::map<std::string, std::map<std::string, std::string>> lost_;  // key: the same, then the way; value: the error
  std::map<std::string, double> part_seconds_;                      // key: device, cuDNN and TrialPart::what
  std::map<std::string, std::string> disproofs_;                    // key: device, cuDNN and operation
};

// These functions keep the timed choices of earlier searches in the folder of cuDNN's plans. One search then serves
// every later run on the same type of GPU with the same cuDNN.

// Loads the kept choices. Does nothing when `folder` is "" or has no such file. A damaged file is ignored with a
// warning.
void load_kept_fusions(const std::string& folder, FusionTable& table);
// Adds the table's timed choices to the file, at once and after each site that is timed from now on. So a search that
// is killed leaves what it has found. A choice that was made by bytes alone is not kept, because a later run may have
// time to search. Does nothing when `folder` is "". Prints one warning when the file cannot be written; later runs then
// search again.
void keep_fusions(const std::string& folder, FusionTable& table);

}  // namespace ringtrain::cuda
