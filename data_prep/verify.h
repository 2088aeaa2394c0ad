// Checks everything about a data set that can be checked. Reports every fault, not only the first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/shard_header.h"

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

// Sorts the ids of a split's samples. Adds a fault if two are equal.
void sort_and_check_ids(const std::string& prefix, std::vector<std::uint64_t>& sample_ids, Verification& result);

// The part that checks images (images/verify.cpp).

// The data by which two splits are compared.
struct ImageSplitFacts {
  struct Content {
    std::uint32_t crc32c = 0;
    std::uint64_t bytes = 0;
    std::uint32_t shard = 0, record = 0;
  };
  std::vector<Content> contents;
  std::vector<std::uint64_t> sample_ids;  // sorted
};

// Checks every record: checksum, decoding, shape, label and id. `whole` says whether all shards of the split are there.
ImageSplitFacts verify_image_split(const std::string& prefix, const std::vector<ShardHeader>& headers, bool whole,
                                   Verification& result);

// Adds faults to `result` if the splits have different classes or a sample id in common. Adds warnings if the splits
// come from two conversions, or if an image is in both.
void compare_image_splits(const std::vector<ShardHeader>& train, const ImageSplitFacts& train_facts,
                          const std::vector<ShardHeader>& validation, const ImageSplitFacts& validation_facts,
                          Verification& result);

}  // namespace ringtrain
