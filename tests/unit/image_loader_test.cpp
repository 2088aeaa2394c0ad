// Tests the loader with images. Any number of ranks, shards, threads and parallel reads must give the same global
// batches, with every sample once. A seek must equal reading on, and errors must appear at their place.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "data/image_dataset.h"
#include "data/jpeg.h"
#include "data/loader.h"
#include "data/row_plan.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/image_shards.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t side = 8;
constexpr std::int64_t image_bytes = side * side * 3;

class ImageLoaderTest : public WithFolder {
 protected:
  std::string prefix() const { return path("squares-train"); }
  std::string shard(std::int64_t i, std::int64_t shards) const { return shard_path(prefix(), i, shards); }

  // Labels are the numbers of the samples, so targets say which sample a row holds.
  TestImages write(std::int64_t samples, std::int64_t shards = 2) const {
    TestImages images = raw_images(samples, side, side);
    images.classes = samples;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    write_image_shards(prefix(), images, shards);
    return images;
  }
  std::shared_ptr<const Dataset> open(ShardFiles::Pread pread = ::pread) const {
    return std::make_shared<ImageDataset>(read_dataset_index(prefix()), nullptr, pread);
  }
};

// Returns a plan that takes pixels as they are stored, or one that crops the padded image and flips it.
LoaderPlan plan_of(std::int64_t global_batch, Augmentation augmentation = Augmentation::none) {
  LoaderPlan plan;
  plan.seed = 5;
  plan.sequence = 1;
  plan.image.size = side;
  plan.image.resize = 0;
  plan.image.augmentation = augmentation;
  plan.image.flip = augmentation != Augmentation::none;
  plan.global_batch = plan.rows = plan.micro_batch = global_batch;
  return plan;
}

LoaderPlan part_of(LoaderPlan plan, std::int64_t rank, std::int64_t ranks, std::int64_t micro_batches = 1) {
  plan.rows = plan.global_batch / ranks;
  plan.first_row = rank * plan.rows;
  plan.micro_batch = plan.rows / micro_batches;
  return plan;
}

struct Step {
  Bytes pixels;  // [global batch, side, side, 3]
  std::vector<std::int32_t> targets;
  std::int64_t targets_counted = 0;
  bool operator==(const Step&) const = default;
  Bytes image(std::size_t row) const {
    const auto begin = pixels.begin() + static_cast<std::ptrdiff_t>(row * image_bytes);
    return {begin, begin + image_bytes};
  }
};

// Joins the micro-batches of all ranks into the global batches of `steps` steps.
std::vector<Step> global_steps(const std::shared_ptr<const Dataset>& dataset, const LoaderPlan& plan,
                               std::int64_t ranks, std::int64_t micro_batches, std::int64_t steps,
                               std::int64_t epoch = 0, std::int64_t first = 0) {
  std::vector<Step> result(static_cast<std::size_t>(steps));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const LoaderPlan part = part_of(plan, rank, ranks, micro_batches);
    Loader loader(dataset, part);
    loader.seek(epoch, first * plan.global_batch);
    for (Step& step : result) {
      for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
        const MicroBatch& batch = loader.next();
        EXPECT_EQ(batch.micro_step, micro);
        EXPECT_EQ(batch.first_row, part.first_row + micro * part.micro_batch);
        EXPECT_EQ(std::ssize(batch.inputs), part.micro_batch * image_bytes);
        EXPECT_EQ(std::ssize(batch.targets), part.micro_batch);
        step.pixels.insert(step.pixels.end(), batch.inputs.begin(), batch.inputs.end());
        step.targets.insert(step.targets.end(), batch.targets.begin(), batch.targets.end());
        if (micro == 0) step.targets_counted += batch.step_targets;
      }
    }
  }
  return result;
}

// Labels are classes of ten samples here. The validation order stays whole.
TEST_F(ImageLoaderTest, AShareHasTheSameSamplesOnAnyNumberOfRanks) {
  TestImages images = raw_images(400, side, side);
  images.classes = 40;
  write_image_shards(prefix(), images, 3);
  LoaderPlan plan = plan_of(8);
  plan.share = 0.5;
  const auto dataset = open();
  ASSERT_EQ(samples_per_epoch(dataset->index(), plan), 200);
  const std::vector<Step> one = global_steps(dataset, plan, 1, 1, 25), four = global_steps(dataset, plan, 4, 2, 25);
  EXPECT_TRUE(one == four);
  std::set<Bytes> distinct;
  std::map<std::int32_t, int> counts;
  for (const Step& step : one)
    for (std::size_t row = 0; row < 8; ++row) {
      distinct.insert(step.image(row));
      ++counts[step.targets[row]];
    }
  EXPECT_EQ(distinct.size(), 200u) << "every sample of the share once";
  ASSERT_EQ(counts.size(), 40u);
  for (const auto& [label, count] : counts) EXPECT_NEAR(count, 5, 1) << label;
  LoaderPlan half = plan;
  half.share = 0.25;
  for (const Step& step : global_steps(dataset, half, 2, 1, 12))
    for (std::size_t row = 0; row < 8; ++row) EXPECT_TRUE(distinct.contains(step.image(row))) << "nested";
  LoaderPlan evaluation = plan;
  evaluation.evaluation = true;
  EXPECT_EQ(samples_per_epoch(dataset->index(), evaluation), 400);
}

TEST_F(ImageLoaderTest, RanksMicroBatchesThreadsReadsAndShardsDoNotChangeTheGlobalBatches) {
  const LoaderPlan plan = plan_of(12, Augmentation::pad_crop);
  std::vector<Step> expected;
  for (const std::int64_t shards : {1, 2, 3, 7}) {
    write(101, shards);
    const auto dataset = open();
    const std::int64_t steps = 2 * steps_per_epoch(dataset->index(), plan) + 3;  // reaches the third epoch
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      LoaderPlan varied = plan;
      varied.threads = 1 + (ranks + shards) % 4;
      varied.reads = ranks * shards;
      varied.prefetch = shards;
      const std::vector<Step> found = global_steps(dataset, varied, ranks, ranks == 2 ? 3 : ranks == 1 ? 4 : 1, steps);
      if (expected.empty()) expected = found;
      EXPECT_TRUE(found == expected) << "ranks " << ranks << ", shards " << shards;
    }
  }
}

TEST_F(ImageLoaderTest, AnEpochTakesEachSampleAtMostOnceAndDropsOnlyTheRemainder) {
  const TestImages images = write(101);
  const auto dataset = open();
  const LoaderPlan plan = plan_of(16);
  const std::int64_t steps = steps_per_epoch(dataset->index(), plan);
  EXPECT_EQ(samples_per_epoch(dataset->index(), plan), 101);
  EXPECT_EQ(steps, 6);
  std::vector<std::int32_t> orders[2];
  for (const std::int64_t epoch : {0, 1}) {
    std::set<std::int32_t> taken;
    for (const Step& step : global_steps(dataset, plan, 2, 2, steps, epoch)) {
      EXPECT_EQ(step.targets_counted, 16);
      for (std::size_t row = 0; row < 16; ++row) {
        EXPECT_TRUE(taken.insert(step.targets[row]).second) << "twice: " << step.targets[row];
        EXPECT_EQ(step.image(row), images.records[static_cast<std::size_t>(step.targets[row])]);
        orders[epoch].push_back(step.targets[row]);
      }
    }
    EXPECT_EQ(std::ssize(taken), 101 - 101 % 16);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST_F(ImageLoaderTest, AugmentationDiffersBetweenEpochsAndSeedsAndNotBetweenRuns) {
  const TestImages images = write(48);
  const auto dataset = open();
  LoaderPlan plan = plan_of(48, Augmentation::pad_crop);
  const auto by_sample = [&](std::int64_t epoch) {  // the pixels of each sample
    const Step step = global_steps(dataset, plan, 1, 1, 1, epoch).front();
    std::vector<Bytes> result(48);
    for (std::size_t row = 0; row < 48; ++row) result[static_cast<std::size_t>(step.targets[row])] = step.image(row);
    return result;
  };
  const auto equal = [](const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
    return count;
  };
  const std::vector<Bytes> first = by_sample(0), second = by_sample(1);
  EXPECT_EQ(equal(first, by_sample(0)), 48);
  EXPECT_EQ(equal(second, by_sample(1)), 48);
  EXPECT_LT(equal(first, second), 8);
  EXPECT_LT(equal(first, images.records), 8);
  plan.seed = 6;
  EXPECT_LT(equal(first, by_sample(0)), 8);
}

TEST_F(ImageLoaderTest, EvaluationTakesEverySampleOnceInNaturalOrderOnAnyNumberOfRanks) {
  const TestImages images = write(53, 3);
  const auto dataset = open();
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    for (const std::int64_t batch : {12, 24, 120}) {
      LoaderPlan plan = plan_of(batch, Augmentation::pad_crop);  // evaluation ignores it
      plan.evaluation = true;
      plan.threads = 2;
      std::int64_t targets = 0, valid = 0;
      std::map<std::int64_t, std::int32_t> taken;  // by position
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const LoaderPlan part = part_of(plan, rank, ranks, batch == 24 ? 2 : 1);
        Loader loader(dataset, part);
        for (std::int64_t pass = 0; pass < steps_per_epoch(dataset->index(), part) * part.rows / part.micro_batch;
             ++pass) {
          const MicroBatch& micro = loader.next();
          valid += micro.valid_rows;
          if (micro.micro_step == 0) targets += micro.step_targets;
          for (std::int64_t row = 0; row < part.micro_batch; ++row) {
            const std::int32_t target = micro.targets[static_cast<std::size_t>(row)];
            const auto begin = micro.inputs.begin() + row * image_bytes;
            const Bytes image(begin, begin + image_bytes);
            if (row >= micro.valid_rows) {
              EXPECT_EQ(target, ignored_target);
              EXPECT_EQ(image, Bytes(image_bytes, 0));
            } else {
              taken[micro.offset + micro.first_row + row] = target;
              EXPECT_EQ(image, images.records.at(static_cast<std::size_t>(target)));
            }
          }
        }
      }
      EXPECT_EQ(valid, 53);
      EXPECT_EQ(targets, 53);
      ASSERT_EQ(taken.size(), 53u) << ranks << " ranks, batch " << batch;
      for (const auto& [position, target] : taken) EXPECT_EQ(position, target);
    }
  }
}

TEST_F(ImageLoaderTest, SeekGivesWhatContinuingWouldHaveGiven) {
  write(101);
  const auto dataset = open();
  LoaderPlan plan = part_of(plan_of(12, Augmentation::pad_crop), 1, 2, 3);
  plan.threads = 2;
  const std::int64_t steps = steps_per_epoch(dataset->index(), plan);
  struct Seen {
    std::int64_t epoch, offset, micro_step;
    Bytes inputs;
    std::vector<std::int32_t> targets;
    bool operator==(const Seen&) const = default;
  };
  const auto take = [](Loader& loader) {
    const MicroBatch& b = loader.next();
    return Seen{
        b.epoch, b.offset, b.micro_step, {b.inputs.begin(), b.inputs.end()}, {b.targets.begin(), b.targets.end()}};
  };
  std::vector<Seen> all;
  Loader loader(dataset, plan);
  for (std::int64_t i = 0; i < 3 * (2 * steps + 3); ++i) all.push_back(take(loader));
  for (int round = 0; round < 10; ++round) {
    for (const std::int64_t start : {std::int64_t{1}, steps - 1, steps, steps + 1, std::int64_t{0}}) {
      loader.seek(start / steps, start % steps * plan.global_batch);  // also in the middle of reading ahead
      for (std::size_t i = 0; i < static_cast<std::size_t>(round); ++i)
        EXPECT_TRUE(take(loader) == all[static_cast<std::size_t>(3 * start) + i]) << start;
    }
  }
  EXPECT_THROW(loader.seek(0, steps * plan.global_batch), Error);
}

TEST_F(ImageLoaderTest, AnEvaluationCanBeRepeated) {
  write(50);
  LoaderPlan plan = plan_of(16);
  plan.evaluation = true;
  const auto dataset = open();
  Loader loader(dataset, plan);
  for (int pass = 0; pass < 4; ++pass) {
    loader.seek(0, 0);
    std::int64_t rows = 0;
    for (std::int64_t step = 0; step < (pass == 1 ? 3 : 4); ++step) {
      const MicroBatch& batch = loader.next();
      EXPECT_EQ(batch.epoch, 0);
      EXPECT_EQ(batch.offset, step * plan.global_batch);
      rows += batch.valid_rows;
    }
    EXPECT_EQ(rows, pass == 1 ? 48 : 50);
  }
}

TEST_F(ImageLoaderTest, DamagedRecordsComeOutOfNextInTheirPlaceNamingFileAndRecord) {
  write(40);
  const std::string file = shard(1, 2);  // holds samples 20 to 39
  change_byte(file, read_shard_header(file).byte_offset + 7 * image_bytes, 1);
  change_byte(file, read_shard_header(file).byte_offset + 9 * image_bytes, 1);
  for (const std::int64_t threads : {1, 3}) {
    LoaderPlan plan = plan_of(8);
    plan.evaluation = true;  // keeps the stored order
    plan.threads = threads;
    plan.prefetch = 8;
    const auto dataset = open();
    Loader loader(dataset, plan);
    for (int step = 0; step < 3; ++step) EXPECT_EQ(loader.next().offset, step * plan.global_batch);
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_contains(message_of([&] { loader.next(); }), "00001-of-00002.h5: record 7 has a wrong CRC-32C");
    }
    loader.seek(0, 0);
    EXPECT_EQ(loader.next().valid_rows, 8);
    loader.seek(0, 4 * plan.global_batch);  // after the damaged batch, whose slot is used again
    for (const std::int64_t step : {4, 0, 1, 2}) EXPECT_EQ(loader.next().offset, step * plan.global_batch);
  }
}

TEST_F(ImageLoaderTest, ImagesThatCannotBeDecodedNameFileAndRecord) {
  TestImages images = raw_images(10, side, side);
  images.raw = false;
  for (Bytes& record : images.records) record.front() = 0;  // no JPEG file begins with 0
  write_image_shards(prefix(), images, 2);
  LoaderPlan plan = plan_of(2);
  plan.evaluation = true;
  plan.threads = 2;
  const auto dataset = open();
  Loader loader(dataset, plan);
  expect_contains(message_of([&] { loader.next(); }), "00000-of-00002.h5: record 0: ");
  EXPECT_EQ(message_of([&] { loader.next(); }).find("[]"), std::string::npos);
}

TEST_F(ImageLoaderTest, AShardThatVanishesIsAnErrorOfNext) {
  write(40);
  const auto dataset = open();
  std::filesystem::remove(shard(0, 2));
  LoaderPlan plan = plan_of(40);
  plan.threads = 2;
  Loader loader(dataset, plan);
  expect_contains(message_of([&] { loader.next(); }), "00000-of-00002.h5: cannot open: No such file");
}

// Holds the state of a replacement for pread. A read waits until `expected` records are being read at the same time.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t expected = 0, here = 0, most = 0;
  bool met = false, missed = false;
};
Meeting meeting;

ssize_t waits_for_the_others(int descriptor, void* out, std::size_t size, off_t offset) {
  if (size == image_bytes) {
    std::unique_lock<std::mutex> lock(meeting.mutex);
    meeting.most = std::max(meeting.most, ++meeting.here);
    meeting.met = meeting.met || meeting.here == meeting.expected;
    meeting.changed.notify_all();
    if (!meeting.missed && !meeting.changed.wait_for(lock, std::chrono::seconds(20), [] { return meeting.met; }))
      meeting.missed = true;
    --meeting.here;
  }
  return ::pread(descriptor, out, size, offset);
}

TEST_F(ImageLoaderTest, SoManyReadsAreUnderWayAtTheSameTimeAndNotMore) {
  write(101);
  for (const std::int64_t reads : {1, 8, 16}) {
    meeting.expected = reads;
    meeting.most = 0;
    meeting.met = false;
    LoaderPlan plan = plan_of(16);
    plan.reads = reads;
    const auto dataset = open(waits_for_the_others);
    {
      Loader loader(dataset, plan);
      for (int step = 0; step < 6; ++step) loader.next();
    }  // its threads have ended
    EXPECT_TRUE(meeting.met);
    EXPECT_EQ(meeting.most, reads);
  }
}

TEST_F(ImageLoaderTest, ARecordThatIsFarLargerThanTheOthersPasses) {
  TestImages images;
  images.raw = false;
  images.classes = 60;
  for (const std::vector<std::uint8_t>& pixels : raw_images(60, side, side).records)
    images.records.push_back(encode_jpeg({side, side, 3, pixels}, 90));
  images.height = images.width = side;
  images.records[31].resize(400000);  // zeros after the end of the image
  write_image_shards(prefix(), images, 2);
  const auto dataset = open();
  LoaderPlan plan = plan_of(4);
  plan.evaluation = true;
  plan.threads = 2;
  plan.prefetch = 15;
  Loader loader(dataset, plan);
  for (std::int32_t sample = 0; sample < 60; sample += 4) {
    const MicroBatch& batch = loader.next();
    for (std::int32_t row = 0; row < 4; ++row) {
      EXPECT_EQ(batch.targets[static_cast<std::size_t>(row)], sample + row);
      const auto begin = batch.inputs.begin() + row * image_bytes;
      EXPECT_EQ(Bytes(begin, begin + image_bytes),
                decode_jpeg(images.records[static_cast<std::size_t>(sample + row)]).pixels);
    }
  }
}

ssize_t takes_its_time(int descriptor, void* out, std::size_t size, off_t offset) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return ::pread(descriptor, out, size, offset);
}

TEST_F(ImageLoaderTest, EndsWhateverItsThreadsAreDoing) {
  write(64);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 60; ++i) {
    const auto dataset = open(i % 2 == 0 ? takes_its_time : ::pread);
    LoaderPlan plan = plan_of(16);
    plan.threads = 1 + i % 3;
    plan.reads = 1 + i % 9;
    Loader loader(dataset, plan);
    if (i % 3 > 0) loader.seek(i % 5, plan.global_batch);
    for (int n = 0; n < i % 4; ++n) loader.next();
    if (i % 5 == 0) loader.seek(2, 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST_F(ImageLoaderTest, MemoryIsTheRingAndTheRecordsInHand) {
  write(64);
  const DatasetIndex index = read_dataset_index(prefix());
  LoaderPlan plan = plan_of(32);
  plan.prefetch = 3;
  plan.reads = 5;
  plan.threads = 2;
  const std::int64_t ring = 4 * 32 * (image_bytes + 4);
  const std::int64_t quarter_mib = 256 << 10;
  EXPECT_EQ(Loader::memory_bytes(index, plan), ring + quarter_mib / image_bytes * image_bytes);
  DatasetIndex other = index;
  for (DatasetIndex::Shard& each : other.shards) {
    each.arrays.image_bytes = 32 * 100000;
    each.arrays.largest_record = 150000;
  }
  EXPECT_EQ(Loader::memory_bytes(other, plan), ring + (2 * 5 + 2) * 150000);
  other.shards[1].arrays.largest_record = 5000000;
  EXPECT_EQ(Loader::memory_bytes(other, plan), ring + (2 * 5 + 2) * 200000 + 5000000);
}

TEST_F(ImageLoaderTest, ImpossiblePlansAreErrors) {
  write(20);
  const DatasetIndex index = read_dataset_index(prefix());
  const auto message = [&](const std::function<void(LoaderPlan&)>& change) {
    LoaderPlan plan = plan_of(4);
    change(plan);
    return message_of([&] { steps_per_epoch(index, plan); });
  };
  EXPECT_EQ(message([](LoaderPlan&) {}), "(no error)");
  expect_contains(message([](LoaderPlan& p) { p.order = TextOrder::windows; }), "holds images");
  expect_contains(message([](LoaderPlan& p) { p.sequence = 8; }), "holds images");
  expect_contains(message([](LoaderPlan& p) { p.image.size = 0; }), "size 0");
  expect_contains(message([](LoaderPlan& p) { p.reads = 0; }), "reads 0");
  expect_contains(message([](LoaderPlan& p) { p.micro_batch = 3; }), "impossible loader plan");
  expect_contains(message([](LoaderPlan& p) { p.global_batch = 21; }), "only 20 samples, but the global batch is 21");
}

}  // namespace
}  // namespace ringtrain
