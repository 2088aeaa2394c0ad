// Tests data.share: the part is nested, drawn by the seed, and has each class in proportion. An epoch reads each of its
// samples once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/random.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

// Labels of classes with 1, 10, 100, 1,000 and 5 x 777 samples, mixed.
std::vector<std::int32_t> mixed_labels() {
  std::vector<std::int32_t> labels;
  std::int32_t label = 0;
  for (const int count : {1, 10, 100, 1000, 777, 777, 777, 777, 777}) labels.insert(labels.end(), count, label++);
  for (std::size_t i = labels.size() - 1; i > 0; --i)
    std::swap(labels[i], labels[static_cast<std::size_t>(random_uniform(1, i) * static_cast<double>(i))]);
  return labels;
}

TEST(DataShare, KeepsEachClassInProportionAndIsNested) {
  const std::vector<std::int32_t> labels = mixed_labels();
  std::map<std::int32_t, double> sizes;
  for (const std::int32_t label : labels) ++sizes[label];
  for (const std::uint64_t seed : {1, 2}) {
    std::set<std::uint32_t> before;
    for (const double share : {0.0002, 0.01, 0.25, 0.5, 0.77, 0.999, 1.0}) {
      const auto used = std::llround(share * static_cast<double>(labels.size()));
      const std::vector<std::uint32_t> kept = used_images(seed, labels, used);
      ASSERT_EQ(std::ssize(kept), used);
      ASSERT_TRUE(std::ranges::is_sorted(kept));
      const std::set<std::uint32_t> now(kept.begin(), kept.end());
      ASSERT_EQ(std::ssize(now), used);
      ASSERT_TRUE(std::ranges::includes(now, before)) << share;
      std::map<std::int32_t, double> counts;
      for (const std::uint32_t i : kept) ++counts[labels[i]];
      const double part = static_cast<double>(used) / static_cast<double>(labels.size());
      for (const auto& [label, size] : sizes) EXPECT_NEAR(counts[label], part * size, 1.5) << share << " " << label;
      before = now;
    }
  }
  EXPECT_EQ(used_images(1, labels, 500), used_images(1, labels, 500));
  EXPECT_NE(used_images(1, labels, 500), used_images(2, labels, 500));
}

DatasetIndex text_index(std::int64_t total, bool running) {
  DatasetIndex index;
  index.prefix = "x";
  index.kind = "text";
  index.total = total;
  index.text.running_text = running;
  index.text.context_length = 5;
  return index;
}

LoaderPlan plan_of(double share, TextOrder order) {
  LoaderPlan plan;
  plan.seed = 7;
  plan.order = order;
  plan.sequence = 5;
  plan.global_batch = plan.rows = plan.micro_batch = 4;
  plan.share = share;
  return plan;
}

// Returns the first record or character, and the targets, of every row of an epoch.
std::vector<std::pair<std::int64_t, std::int64_t>> rows_of(const DatasetIndex& index, const LoaderPlan& plan) {
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (std::int64_t offset = 0; offset + 4 <= samples_per_epoch(index, plan); offset += 4) {
    const StepRows step(index, plan, 3, offset);
    for (int row = 0; row < 4; ++row) rows.emplace_back(step(row).first, step(row).targets);
  }
  return rows;
}

TEST(DataShare, OfNamesIsNestedAndReadOncePerEpoch) {
  const DatasetIndex index = text_index(1001, false);
  std::set<std::int64_t> before;
  for (const double share : {0.1, 0.25, 0.5, 1.0}) {
    const LoaderPlan plan = plan_of(share, TextOrder::rows);
    const std::int64_t used = used_of(index, plan);
    EXPECT_EQ(used, std::llround(share * 1001));
    EXPECT_EQ(samples_per_epoch(index, plan), used);
    std::set<std::int64_t> records;
    for (std::int64_t i = 0; i < used; ++i) records.insert(share < 1 ? used_record(7, 1001, i) : i);
    EXPECT_EQ(std::ssize(records), used);
    EXPECT_TRUE(std::ranges::includes(records, before)) << share;
    const auto rows = rows_of(index, plan);
    std::set<std::int64_t> read;
    for (const auto& [record, targets] : rows) {
      EXPECT_TRUE(records.contains(record)) << record;
      EXPECT_TRUE(read.insert(record).second) << record << " is read twice";
    }
    EXPECT_EQ(std::ssize(read), used / 4 * 4);
    before = records;
    LoaderPlan evaluation = plan;
    evaluation.evaluation = true;
    EXPECT_EQ(samples_per_epoch(index, evaluation), 1001);
  }
}

TEST(DataShare, OfRunningTextIsAWindow) {
  const DatasetIndex index = text_index(4000, true);
  for (const TextOrder order : {TextOrder::windows, TextOrder::streams}) {
    std::int64_t begin = 4000, end = 0;
    for (const double share : {0.1, 0.3, 0.8, 1.0}) {
      const LoaderPlan plan = plan_of(share, order);
      const std::int64_t used = used_of(index, plan), first = share < 1 ? first_used(7, 4000, used) : 0;
      EXPECT_LE(first, begin);
      EXPECT_GE(first + used, end) << "nested";
      begin = first;
      end = first + used;
      std::set<std::int64_t> characters;
      for (const auto& [at, targets] : rows_of(index, plan)) {
        EXPECT_GE(at, begin);
        EXPECT_LE(at + targets, end - 1) << "the last target is in the window";
        for (std::int64_t i = at; i < at + targets; ++i) EXPECT_TRUE(characters.insert(i).second);
      }
      EXPECT_GT(std::ssize(characters), used - 35) << "nearly all characters of the window are read";
    }
  }
}

}  // namespace
}  // namespace ringtrain
