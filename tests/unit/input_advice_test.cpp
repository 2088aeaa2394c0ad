// Tests the advice on input: which kind of input a node needs, and how many loader threads.
#include <gtest/gtest.h>

#include "bench/benchmarks.h"

namespace ringtrain {
namespace {

// The measured rate is 971 crops/s per core, with 4 ranks of 2 loader threads each on 16 cores.
NodeInput jpegs(int cores = 16) {
  return {.samples_per_second = 8 * 971.0,
          .bytes_per_second = 2e9,
          .loader_threads = 8,
          .ranks = 4,
          .cores = cores,
          .computing_threads = 4,
          .images = true,
          .image_size = 224};
}

TEST(InputAdvice, ThreadsAreThoseOfTheWantedRateWholeOnEveryRank) {
  const InputAdvice a = input_advice(jpegs(), 8000);
  EXPECT_DOUBLE_EQ(a.samples_per_core, 971);
  EXPECT_EQ(a.threads_per_rank, 3);  // 2000 / 971 = 2.06
  EXPECT_EQ(a.threads, 12);
  EXPECT_EQ(a.free_cores, 12);
  EXPECT_TRUE(a.loaders_do);
  EXPECT_FALSE(input_advice(jpegs(15), 8000).loaders_do);
  EXPECT_EQ(input_advice(jpegs(), 2 * 4 * 971).threads_per_rank, 2);  // exactly two threads' rate
}

TEST(InputAdvice, ThreadsThatShareACoreAreNotFaster) {
  NodeInput node = jpegs(4);
  EXPECT_DOUBLE_EQ(input_advice(node, 1).samples_per_core, 2 * 971);
  node.computing_threads = 8;
  EXPECT_EQ(input_advice(node, 1).free_cores, 0);
  EXPECT_FALSE(input_advice(node, 1).loaders_do);
}

TEST(InputAdvice, ADecodedDataSetIsReadWithItsPixels) {
  const InputAdvice a = input_advice(jpegs(), 8000);
  EXPECT_EQ(a.decoded_size, 256);
  EXPECT_DOUBLE_EQ(a.decoded_bytes_per_second, 8000.0 * 256 * 256 * 3);
  EXPECT_TRUE(a.files_do);
  EXPECT_FALSE(input_advice(jpegs(), 11'000).files_do);
}

TEST(InputAdvice, SaysWhichOfTheTwo) {
  EXPECT_EQ(
      input_advice_lines(jpegs(), 8000),
      (std::vector<std::string>{"one loader thread on a core: 971 samples/s",
                                "8,000 samples/s of a node take 12 loader threads (data.loader_threads: 3 on each "
                                "of 4 ranks); 12 of its 16 cores are free",
                                "JPEGs, decoded on its cores, will do"}));
  const std::vector<std::string> decoded = input_advice_lines(jpegs(8), 8000);
  ASSERT_EQ(decoded.size(), 4u);
  EXPECT_EQ(decoded[2],
            "JPEGs, decoded on its cores, will not do (3,884 samples/s): it needs a decoded data set, "
            "bin/ringtrain-data images ... --size 256 --encoding raw");
  EXPECT_EQ(decoded[3], "which is read with 1.5 GiB/s; the files gave 1.9 GiB/s");
  EXPECT_NE(input_advice_lines(jpegs(8), 16'000).back().find("too slow"), std::string::npos);
}

TEST(InputAdvice, OfADecodedDataSetAndOfTextItSaysWhetherTheyWillDo) {
  NodeInput node = jpegs(8);
  node.raw = true;
  EXPECT_EQ(input_advice_lines(node, 8000).back(),
            "this decoded data set will not do: 3,884 samples/s is what its free cores load");
  node.images = false;
  EXPECT_EQ(input_advice_lines(node, 3000).back(), "this data set will do");
}

TEST(InputAdvice, WithoutAWantedRateItSaysWhatAThreadGives) {
  const std::vector<std::string> lines = input_advice_lines(jpegs(), 0);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("--wanted"), std::string::npos);
  EXPECT_TRUE(input_advice_lines({}, 8000).empty());
}

}  // namespace
}  // namespace ringtrain
