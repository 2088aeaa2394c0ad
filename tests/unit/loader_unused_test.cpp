// Tests errors in batches that the loader has read ahead and that are never used. The loader reports them once, as a
// warning, and throws nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "data/batch_source.h"
#include "data/image_dataset.h"
#include "data/loader.h"
#include "tests/unit/image_shards.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

constexpr std::int64_t batch = 4, first_bad = 3 * batch;

// A source that fails to read every sample from first_bad on. `failed` counts the failures.
struct BadSource : BatchSource {
  struct Filler : BatchFiller {
    explicit Filler(std::atomic<int>& count) : failed(count) {}
    void fill(const BatchPart& part, std::span<const std::uint8_t>, const BatchSpace&) override {
      if (part.offset < first_bad) return;
      ++failed;
      throw Error(cat("shard.h5: sample ", part.offset + part.part, " cannot be read"));
    }
    std::atomic<int>& failed;
  };
  explicit BadSource(std::atomic<int>& count) : failed(count) {}
  std::unique_ptr<BatchFiller> make_filler() override { return std::make_unique<Filler>(failed); }
  std::int64_t record_bytes(const BatchPart&) const override { return 0; }
  void read(const BatchPart&, std::vector<std::uint8_t>&) const override {}
  std::atomic<int>& failed;
};

class UnusedBatch : public WithFolder {
 protected:
  std::unique_ptr<Loader> loader() {
    write_image_shards(path("set"), raw_images(40, 8, 8), 1);
    LoaderPlan plan;
    plan.sequence = 1;
    plan.image.size = 8;
    plan.image.resize = 0;
    plan.global_batch = plan.rows = plan.micro_batch = batch;
    plan.evaluation = true;  // keeps the stored order
    plan.prefetch = 4;
    failed_ = 0;
    return std::make_unique<Loader>(std::make_shared<ImageDataset>(read_dataset_index(path("set"))), plan,
                                    std::make_unique<BadSource>(failed_));
  }
  void wait_for_failures() const {
    const auto begin = std::chrono::steady_clock::now();
    while (failed_ < 2 * batch && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
      std::this_thread::yield();
    EXPECT_GE(failed_, 2 * batch);
  }
  // Returns the text that `action` writes to stderr.
  template <class Action>
  static std::string said(const Action& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }
  std::atomic<int> failed_ = 0;
};

constexpr const char* warning =
    "warning: shard.h5: sample 12 cannot be read; the batch was read ahead, and is thrown away unused\n";

TEST_F(UnusedBatch, ItsErrorIsAWarningAtTheEnd) {
  auto used = loader();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(used->next().offset, i * batch);
  wait_for_failures();
  EXPECT_EQ(said([&] { used.reset(); }), warning);
}

TEST_F(UnusedBatch, ItsErrorIsAWarningOfSeek) {
  auto used = loader();
  used->next();
  wait_for_failures();
  failed_ = 0;
  EXPECT_EQ(said([&] { used->seek(0, 0); }), warning);
  EXPECT_EQ(used->next().offset, 0);
  wait_for_failures();
  EXPECT_EQ(said([&] { used.reset(); }), warning) << "it was read again, in vain again";
}

TEST_F(UnusedBatch, AnErrorThatWasThrownIsNotToldAgain) {
  auto used = loader();
  for (int i = 0; i < 3; ++i) used->next();
  expect_contains(message_of([&] { used->next(); }), "shard.h5: sample 12 cannot be read");
  wait_for_failures();
  EXPECT_EQ(said([&] { used.reset(); }), "");
}

}  // namespace
}  // namespace ringtrain
