// Checks everything about a data set that can be checked. Reports every fault, not only the first.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace ringtrain {

// The faults and warnings that a verification finds.
struct Verification {
  std::vector<std::string> faults;   // each is one sentence that names the file and the record or block
  std::vector<std::string> summary;  // what the data set holds, and the warnings
};

// Collects the faults of one kind in one file. It lists the first few and only counts the others, because a damaged
// file may have thousands.
class FaultList {
 public:
  FaultList(Verification& result, std::string path) : result_(result), path_(std::move(path)) {}
  ~FaultList() {
    if (count_ > shown) result_.faults.push_back(cat(path_, ": ... and ", count_ - shown, " more"));
  }
  FaultList(const FaultList&) = delete;
  FaultList& operator=(const FaultList&) = delete;
  void add(const std::string& what) {
    if (++count_ <= shown) result_.faults.push_back(cat(path_, ": ", what));
  }

 private:
  static constexpr std::size_t shown = 5;
  Verification& result_;
  std::string path_;
  std::size_t count_ = 0;
};

// `target` is one file (.h5), the prefix of one split ("data/pets-train"), or the prefix of all splits ("data/pets").
Verification verify_dataset(const std::string& target);

}  // namespace ringtrain
