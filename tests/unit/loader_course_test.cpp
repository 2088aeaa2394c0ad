// Tests the loader in runs whose batch changes. Any number of ranks must give the same samples in the same order, each
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/image_dataset.h"
#include "data/loader.h"
#include "data/row_plan.h"
#include "tests/unit/image_shards.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

constexpr std::int64_t picture_side = 8, samples = 101;

using Labels = std::vector<std::int32_t>;

// The rows of one update, joined from all ranks.
struct Update {
  std::int64_t epoch = 0, offset = 0, counted = 0;
  Labels labels;
  bool operator==(const Update&) const = default;
};

class LoaderCourse : public WithFolder {
 protected:
  // Labels are the numbers of the samples, so targets say which sample a row holds.
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(WithFolder::SetUp());
    images_ = raw_images(samples, picture_side, picture_side);
    images_.classes = samples;
    write_image_shards(path("squares-train"), images_, 2);
    dataset_ = std::make_shared<ImageDataset>(read_dataset_index(path("squares-train")));
  }

  LoaderPlan plan_of(std::int64_t rank, std::int64_t ranks, std::int64_t micro_batch) const {
    LoaderPlan plan;
    plan.seed = 5;
    plan.sequence = 1;
    plan.image.size = picture_side;
    plan.image.resize = 0;
    plan.image.augmentation = Augmentation::none;
    plan.image.flip = false;
    plan.global_batch = 12;
    plan.rows = 12 / ranks;
    plan.first_row = rank * plan.rows;
    plan.micro_batch = micro_batch;
    plan.threads = 2;
    plan.prefetch = 3;
    return plan;
  }

  static void take_update(Loader& loader, const LoaderPlan& plan, std::int64_t batch, Update& update) {
    for (std::int64_t micro = 0; micro < plan.rows * batch / 12 / plan.micro_batch; ++micro) {
      const MicroBatch& b = loader.next();
      update.epoch = b.epoch;
      update.offset = b.offset;
      if (micro == 0) update.counted += b.step_targets;
      EXPECT_EQ(b.micro_step, micro);
      EXPECT_EQ(b.first_row, plan.first_row * batch / 12 + micro * plan.micro_batch);
      update.labels.insert(update.labels.end(), b.targets.begin(), b.targets.end());
    }
  }

  // Returns the updates of a run on this course, from position `from` to the end of epoch `epochs` - 1.
  std::vector<Update> updates(const BatchCourse& course, std::int64_t ranks, std::int64_t micro_batch,
                              std::int64_t epochs, Position from = {}) const {
    std::vector<Update> all;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      LoaderPlan plan = plan_of(rank, ranks, micro_batch);
      plan.course = course;
      Loader loader(dataset_, plan);
      loader.seek(from.epoch, from.offset);
      std::size_t i = 0;
      for (Position p = from; p.epoch < epochs; p = course.after(p), ++i) {
        if (rank == 0) all.emplace_back();
        take_update(loader, plan, course.batch_at(p), all.at(i));
        EXPECT_EQ(all[i].epoch, p.epoch);
        EXPECT_EQ(all[i].offset, p.offset);
      }
    }
    return all;
  }

  TestImages images_;
  std::shared_ptr<const Dataset> dataset_;
};

Labels of_epoch(const std::vector<Update>& updates, std::int64_t epoch) {
  Labels labels;
  for (const Update& u : updates)
    if (u.epoch == epoch) labels.insert(labels.end(), u.labels.begin(), u.labels.end());
  return labels;
}

Labels order_of(std::int64_t epoch, std::int64_t count) {
  const EpochOrder order(5, epoch, samples);
  Labels labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(static_cast<std::int32_t>(order(i)));
  return labels;
}

// The batch grows after three updates of epoch 0, and again at epoch 2.
const BatchCourse grows{samples, false, {{.batch = 12}, {.offset = 36, .batch = 24}, {.epoch = 2, .batch = 60}}};

TEST_F(LoaderCourse, ASchedulesSamplesAreThoseOfAConstantBatchInTheSameOrder) {
  const std::vector<Update> expected = updates(grows, 1, 4, 4);
  for (const auto& [ranks, micro] : {std::pair<std::int64_t, std::int64_t>{1, 12}, {1, 1}, {2, 3}, {2, 6}, {4, 3}})
    EXPECT_TRUE(updates(grows, ranks, micro, 4) == expected) << ranks << " ranks, micro-batch " << micro;
  // Epoch 0 has three updates of 12 and two of 24, epoch 1 has four of 24, and epochs 2 and 3 have one of 60 each.
  EXPECT_EQ(of_epoch(expected, 0), order_of(0, 84));
  EXPECT_EQ(of_epoch(expected, 1), order_of(1, 96));
  EXPECT_EQ(of_epoch(expected, 2), order_of(2, 60));
  const Labels last = of_epoch(expected, 3);
  EXPECT_EQ(last, order_of(3, 60));
  EXPECT_EQ(std::set<std::int32_t>(last.begin(), last.end()).size(), last.size()) << "none twice";
  for (const Update& u : expected) EXPECT_EQ(u.counted, std::ssize(u.labels));
}

TEST_F(LoaderCourse, ARunMayBeginAnywhereOnACourse) {
  const std::vector<Update> all = updates(grows, 1, 4, 4);
  Position p;
  for (std::size_t i = 0; i < all.size(); ++i, p = grows.after(p)) {
    const std::vector<Update> rest = updates(grows, 2, 2, 4, p);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + static_cast<std::ptrdiff_t>(i), all.end())) << i;
  }
}

TEST_F(LoaderCourse, AnotherBatchFromHereOnThrowsAwayWhatWasReadAhead) {
  for (const std::int64_t ranks : {1, 2}) {
    std::vector<Update> all(7);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const LoaderPlan plan = plan_of(rank, ranks, 3);
      Loader loader(dataset_, plan);
      for (std::size_t i = 0; i < 2; ++i) take_update(loader, plan, 12, all[i]);
      loader.seek(0, 24, 24);
      for (std::size_t i = 2; i < 7; ++i) take_update(loader, plan, 24, all[i]);
      EXPECT_THROW(loader.seek(0, 96), Error) << "5 samples are left";
    }
    EXPECT_EQ(of_epoch(all, 0), order_of(0, 96));
    EXPECT_EQ(of_epoch(all, 1), order_of(1, 48));
  }
}

TEST_F(LoaderCourse, WithASmallerLastBatchEverySampleCountsOnceAnEpoch) {
  for (BatchCourse course : {constant_course(12, samples), grows}) {
    course.keeps_rest = true;
    const std::vector<Update> expected = updates(course, 1, 4, 4);
    for (const auto& [ranks, micro] : {std::pair<std::int64_t, std::int64_t>{1, 12}, {2, 3}, {4, 3}})
      EXPECT_TRUE(updates(course, ranks, micro, 4) == expected) << ranks << " ranks, micro-batch " << micro;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      Labels labels = of_epoch(expected, epoch);
      std::erase(labels, ignored_target);
      EXPECT_EQ(labels, order_of(epoch, samples));
    }
    std::int64_t counted = 0;
    for (const Update& u : expected) {
      EXPECT_EQ(u.counted, std::min(samples - u.offset, std::ssize(u.labels)));
      counted += u.counted;
    }
    EXPECT_EQ(counted, 4 * samples);
  }
}

// A smaller last batch is filled up with rows whose targets are ignored. Batch norm includes these rows in its
// statistics, so they must be real images.
TEST_F(LoaderCourse, TheOtherRowsOfASmallerBatchAreTheEpochsFirstImages) {
  LoaderPlan plan = plan_of(0, 1, 12);
  plan.course = constant_course(12, samples, true);
  Loader loader(dataset_, plan);
  loader.seek(1, 96);
  const MicroBatch& rest = loader.next();
  const Labels first = order_of(1, 7);
  EXPECT_EQ(rest.step_targets, 5);
  EXPECT_EQ(rest.valid_rows, 5);
  for (std::size_t i = 0; i < 7; ++i) {
    const auto begin = rest.inputs.begin() + static_cast<std::ptrdiff_t>((5 + i) * picture_side * picture_side * 3);
    EXPECT_EQ(rest.targets[5 + i], ignored_target);
    EXPECT_TRUE(std::equal(begin, begin + picture_side * picture_side * 3,
                           images_.records[static_cast<std::size_t>(first[i])].begin()));
  }
}

}  // namespace
}  // namespace ringtrain
