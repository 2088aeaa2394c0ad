// Tests the counts of `ringtrain bench utilisation`, the sizes that `ringtrain bench split` tries, and how `ringtrain
// bench components` leaves out parts of a step.
#include "base/error.h"
#include "bench/benchmarks.h"
#include "data/image_dataset.h"
#include "data/image_transform.h"
#include "data/jpeg.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/cuda_training.h"
#include "tests/unit/image_shards.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

TEST(Utilisation, CountsTheProductsOfBothPasses) {
  Graph g;
  int x = g.image(8, 8, {0, 0, 0}, {1, 1, 1});
  x = g.convolution(x, 4, 3, 1, 1, "conv");
  g.cross_entropy(g.dense(g.flatten(g.relu(x)), 10, "fc"));
  // The convolution has 4 x 27 products at 64 places, in the forward pass and for the weight gradient. The dense
  // layer's products count three times.
  EXPECT_EQ(g.training_flops_per_sample(), 2 * (2 * 4 * 27 * 64 + 3 * 256 * 10));
}

TEST(PipelineTrials, TryMicroBatchesThatEveryBatchOfTheRunAllows) {
  BatchConfig batch;
  batch.global = 96;
  batch.worker = 1;
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(micro_batches_to_try(batch_shares(batch, 1, false), 10), (Sizes{1, 2, 4, 8, 16, 32, 48, 96}));
  EXPECT_EQ(micro_batches_to_try(batch_shares(batch, 1, false), 6), (Sizes{4, 8, 16, 32, 48, 96}));
  batch.schedule = {{.epoch = 5, .factor = 1.5}};  // 144 samples, which no pass of 96 divides
  EXPECT_EQ(micro_batches_to_try(batch_shares(batch, 1, false), 10), (Sizes{1, 2, 4, 8, 16, 24, 48}));
}

Image picture(std::int64_t height, std::int64_t width) {
  Image image{height, width, 3, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * 3))};
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(128 + 100 * std::sin(0.01 * static_cast<double>(i % 997)));
  return image;
}

TEST(DecodedOnly, AreTheRowsOfTheCropAsTheyAre) {
  const std::int64_t size = 24;
  ImageTransform transform;
  transform.size = size;
  const std::vector<std::uint8_t> jpeg = encode_jpeg(picture(90, 70), 95);
  const Image whole = decode_jpeg(jpeg);
  ImageDecoder decoder(transform);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(size * size * 3));
  for (std::uint64_t sample = 0; sample < 20; ++sample) {
    const SampleKey key{1, 2, sample};
    const CropBox box = training_crop(transform, 90, 70, key);
    decoder.decoded_only(jpeg, key, out);
    const std::int64_t width = std::min(size, box.width);
    // Row i of the result is the last row of the crop whose number is i modulo the size.
    for (std::int64_t i = 0; i < std::min(size, box.height); ++i) {
      const std::int64_t row = box.top + (box.height - 1 - i) / size * size + i;
      const auto expected = whole.pixels.begin() + (row * 70 + box.left) * 3;
      EXPECT_TRUE(std::equal(expected, expected + width * 3, out.begin() + i * size * 3)) << sample << " row " << i;
    }
  }
}

class ReducedSource : public WithFolder {
 protected:
  static constexpr std::int64_t samples = 40, size = 12;
  std::shared_ptr<const Dataset> data(bool raw) {
    TestImages images = raw_images(samples, 16, 20);
    if (!raw) {
      images.raw = false;
      images.records.clear();
      for (std::int64_t i = 0; i < samples; ++i) images.records.push_back(encode_jpeg(picture(20 + i, 30), 90));
    }
    const std::string prefix = (folder_ / (raw ? "raw" : "jpeg")).string();
    write_image_shards(prefix, images, 2);
    return make_dataset(read_dataset_index(prefix));
  }
  static LoaderPlan plan() {
    LoaderPlan p;
    p.seed = 3;
    p.sequence = 1;
    p.image.size = size;
    p.global_batch = p.rows = 8;
    p.micro_batch = 4;
    return p;
  }
  // Returns the pixels and targets of the first micro-batches.
  static std::pair<std::vector<std::uint8_t>, std::vector<std::int32_t>> first(Loader& loader, int passes) {
    std::pair<std::vector<std::uint8_t>, std::vector<std::int32_t>> all;
    loader.seek(0, 0);
    for (int i = 0; i < passes; ++i) {
      const MicroBatch& batch = loader.next();
      all.first.insert(all.first.end(), batch.inputs.begin(), batch.inputs.end());
      all.second.insert(all.second.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
  }
};

// A reduced source gives the first pictures of the order again and again, without storage or without decoding. These
// pictures must be the ones that the whole input gives first.
TEST_F(ReducedSource, GivesTheFirstPicturesWithoutReadingOrDecodingThem) {
  const auto jpeg = data(false);
  Loader whole(jpeg, plan());
  const auto expected = first(whole, 6);
  for (const InputPart part : {InputPart::storage, InputPart::decode}) {
    Loader reduced(jpeg, plan(), make_reduced_source(jpeg, plan(), part));
    const auto got = first(reduced, 6);
    EXPECT_EQ(got.second, expected.second);
    EXPECT_EQ(got.first, expected.first) << static_cast<int>(part);
  }
  Loader plain(jpeg, plan(), make_reduced_source(jpeg, plan(), InputPart::augment));
  const auto got = first(plain, 6);
  EXPECT_EQ(got.second, expected.second);
  EXPECT_NE(got.first, expected.first);
}

TEST_F(ReducedSource, OfPixelsHasNoDecoding) {
  const auto raw = data(true);
  EXPECT_THROW(make_reduced_source(raw, plan(), InputPart::decode), Error);
  Loader whole(raw, plan()), reduced(raw, plan(), make_reduced_source(raw, plan(), InputPart::storage));
  EXPECT_EQ(first(reduced, 3), first(whole, 3));
}

// stage_again() gives a device the input of an earlier pass. Everything else of the pass is done as usual.
TEST(StageAgain, TakesTheInputOfTheSecondLastPass) {
  Images s(small_resnet(18, 16, "small", 16), 2, 2);
  cuda::HostDevice device;
  const auto backend = cuda::make_backend(device, {});
  const auto weights = backend->make_vector(s.table.size());
  backend->copy_from_host(std::vector<float>(s.w.begin(), s.w.end()), *weights, 0);
  const auto program = backend->compile(s.graph, 2, Precision::fp32, PassMode::inference);
  program->allocate();
  program->set_weights(*weights);
  PageVector<std::uint8_t> a(s.x.begin(), s.x.end()), b(s.x.rbegin(), s.x.rend());
  const PageVector<std::int32_t> y(s.y.begin(), s.y.end());
  EXPECT_THROW(program->stage_again(), Error);
  const double of_a = program->run({a.data(), y.data()}).loss, of_b = program->run({b.data(), y.data()}).loss;
  ASSERT_NE(of_a, of_b);
  for (const double expected : {of_a, of_b, of_a}) {
    program->stage_again();
    program->forward({});
    EXPECT_EQ(program->take_sums().loss, expected);
  }
}

}  // namespace
}  // namespace ringtrain
