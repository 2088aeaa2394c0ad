// Tests the loader. Any number of ranks, shards and threads must give the same global batches, with every sample once.
// A seek must equal reading on.
#include "data/loader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "data/row_plan.h"
#include "data/shard_files.h"
#include "data/shard_header.h"
#include "data/text_dataset.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::uint8_t>;

class LoaderTest : public WithFolder {
 protected:
  // Makes a data set of about 1,500 rows whose contents differ enough.
  std::shared_ptr<const TextDataset> names(std::int64_t shards = 2) const {
    std::ofstream out(path("names.txt"));
    for (int i = 0; i < 300; ++i) {
      for (int n = i + 1; n > 0; n /= 7) out << static_cast<char>('a' + n % 7);
      out << "q\n";
    }
    out.close();
    NamesOptions options;
    options.input.path = path("names.txt");
    options.out = path("names");
    options.shards = shards;
    options.validation = 0;
    options.force = true;
    std::ostringstream log;
    convert_names(options, log);
    return std::make_shared<TextDataset>(read_dataset_index(path("names-train")));
  }

  // Makes a data set of random characters, so that positions can be told apart.
  std::shared_ptr<const TextDataset> text(std::int64_t length, std::int64_t shards = 2) const {
    std::string all;
    for (std::int64_t i = 0; i < length; ++i)
      all += static_cast<char>('A' + philox(1, static_cast<std::uint64_t>(i), 0).v[0] % 50);
    std::ofstream(path("text.txt")) << all;
    TextOptions options;
    options.input = path("text.txt");
    options.out = path("text");
    options.shards = shards;
    options.validation = 0;
    options.force = true;
    std::ostringstream log;
    convert_text(options, log);
    return std::make_shared<TextDataset>(read_dataset_index(path("text-train")));
  }
};

LoaderPlan plan_of(TextOrder order, std::int64_t sequence, std::int64_t global_batch) {
  LoaderPlan plan;
  plan.seed = 5;
  plan.order = order;
  plan.sequence = sequence;
  plan.global_batch = plan.rows = plan.micro_batch = global_batch;
  return plan;
}

// Returns the plan of one rank, which has its part of each global batch.
LoaderPlan text_part_of(LoaderPlan plan, std::int64_t rank, std::int64_t ranks, std::int64_t micro_batches = 1) {
  plan.rows = plan.global_batch / ranks;
  plan.first_row = rank * plan.rows;
  plan.micro_batch = plan.rows / micro_batches;
  return plan;
}

using Targets = std::vector<std::int32_t>;

struct TextStep {
  Bytes inputs;
  Targets targets;  // [global batch, sequence]
  std::int64_t targets_counted = 0;
  bool operator==(const TextStep&) const = default;
};

// Joins the micro-batches of all ranks into the global batches of `steps` steps.
std::vector<TextStep> global_steps(const std::shared_ptr<const TextDataset>& dataset, const LoaderPlan& plan,
                                   std::int64_t ranks, std::int64_t micro_batches, std::int64_t steps,
                                   std::int64_t epoch = 0, std::int64_t first = 0) {
  std::vector<TextStep> result(static_cast<std::size_t>(steps));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const LoaderPlan part = text_part_of(plan, rank, ranks, micro_batches);
    Loader loader(dataset, part);
    loader.seek(epoch, first * plan.global_batch);
    for (TextStep& step : result) {
      for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
        const MicroBatch& batch = loader.next();
        EXPECT_EQ(batch.micro_step, micro);
        EXPECT_EQ(batch.first_row, part.first_row + micro * part.micro_batch);
        step.inputs.insert(step.inputs.end(), batch.inputs.begin(), batch.inputs.end());
        step.targets.insert(step.targets.end(), batch.targets.begin(), batch.targets.end());
        if (micro == 0) step.targets_counted += batch.step_targets;
      }
    }
  }
  return result;
}

std::int64_t counted_targets(const Targets& targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id != ignored_target; });
}

TEST_F(LoaderTest, RanksMicroBatchesThreadsAndShardsDoNotChangeTheGlobalBatches) {
  for (const TextOrder order : {TextOrder::rows, TextOrder::windows, TextOrder::streams}) {
    const bool rows = order == TextOrder::rows;
    LoaderPlan plan = plan_of(order, rows ? 8 : 11, 24);
    std::vector<TextStep> expected;
    for (const std::int64_t shards : {1, 2, 3, 7}) {
      const auto dataset = rows ? names(shards) : text(20011, shards);
      const std::int64_t steps = 2 * steps_per_epoch(dataset->index(), plan) + 3;  // reaches the third epoch
      for (const std::int64_t ranks : {1, 2, 3, 4}) {
        plan.threads = ranks;
        plan.prefetch = 1 + shards;
        const std::vector<TextStep> found = global_steps(dataset, plan, ranks,
                                                         ranks == 3   ? 4
                                                         : ranks == 1 ? 3
                                                                      : 1,
                                                         steps);
        if (expected.empty()) expected = found;
        EXPECT_TRUE(found == expected) << "ranks " << ranks << ", shards " << shards;
      }
    }
  }
}

TEST_F(LoaderTest, AnEpochOfRowsTakesEachSampleAtMostOnceAndDropsOnlyTheRemainder) {
  const auto dataset = names();
  const DatasetIndex& index = dataset->index();
  const LoaderPlan plan = plan_of(TextOrder::rows, 8, 32);
  const std::int64_t steps = steps_per_epoch(index, plan);
  EXPECT_EQ(samples_per_epoch(index, plan), index.total);
  EXPECT_EQ(steps, index.total / 32);
  std::map<Bytes, std::int64_t> stored, taken[2];
  for (std::int64_t i = 0; i < index.total; ++i) {
    Bytes row(9);
    dataset->read_row(i, row);
    ++stored[row];
  }
  for (const std::int64_t epoch : {0, 1}) {
    for (const TextStep& step : global_steps(dataset, plan, 2, 1, steps, epoch)) {
      for (std::size_t row = 0; row < 32; ++row) {
        Bytes whole(step.inputs.begin() + static_cast<std::ptrdiff_t>(8 * row),
                    step.inputs.begin() + static_cast<std::ptrdiff_t>(8 * row + 8));
        whole.push_back(static_cast<std::uint8_t>(step.targets[8 * row + 7]));
        EXPECT_TRUE(
            std::equal(whole.begin() + 1, whole.end(), step.targets.begin() + static_cast<std::ptrdiff_t>(8 * row)));
        ++taken[epoch][whole];
      }
    }
    std::int64_t missing = 0;
    for (const auto& [row, count] : stored) {
      EXPECT_LE(taken[epoch][row], count);
      missing += count - taken[epoch][row];
    }
    EXPECT_EQ(missing, index.total % 32);
  }
  EXPECT_FALSE(global_steps(dataset, plan, 1, 1, 1, 0) == global_steps(dataset, plan, 1, 1, 1, 1));
}

TEST_F(LoaderTest, MaskedBlanksAreCountedOverTheWholeStep) {
  const auto dataset = names();
  LoaderPlan plan = plan_of(TextOrder::rows, 8, 24);
  const std::vector<TextStep> open = global_steps(dataset, plan, 1, 1, 5);
  plan.mask_blanks = true;
  plan.threads = 3;
  const std::vector<TextStep> whole = global_steps(dataset, plan, 1, 1, 5);
  for (const std::int64_t micro_batches : {2, 4}) {
    EXPECT_TRUE(global_steps(dataset, plan, 3, micro_batches, 5) == whole);
  }
  for (std::size_t s = 0; s < whole.size(); ++s) {
    EXPECT_EQ(open[s].targets_counted, 24 * 8);
    EXPECT_EQ(whole[s].targets_counted, counted_targets(whole[s].targets));
    EXPECT_LT(whole[s].targets_counted, 24 * 8);
    for (std::size_t i = 0; i < open[s].targets.size(); ++i) {
      EXPECT_EQ(whole[s].targets[i], open[s].targets[i] == 0 ? ignored_target : open[s].targets[i]);
    }
  }
}

// The loader has read ahead and counted for the smaller batch at the same place. It must count again.
TEST_F(LoaderTest, MaskedBlanksAreCountedAnewWhereTheBatchChanges) {
  const auto dataset = names();
  LoaderPlan plan = text_part_of(plan_of(TextOrder::rows, 8, 24), 0, 1, 3);
  plan.mask_blanks = true;
  plan.prefetch = 12;
  Loader loader(dataset, plan);
  for (int pass = 0; pass < 3; ++pass) loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // lets it read ahead
  loader.seek(0, 24, 48);
  std::int64_t stated = 0, found = 0;
  for (int pass = 0; pass < 6; ++pass) {
    const MicroBatch& batch = loader.next();
    stated = batch.step_targets;
    found += counted_targets({batch.targets.begin(), batch.targets.end()});
  }
  EXPECT_EQ(stated, found);
}

TEST_F(LoaderTest, EvaluationTakesEverySampleOnceOnAnyNumberOfRanks) {
  const auto dataset = names();
  std::multiset<Bytes> stored;
  for (std::int64_t i = 0; i < dataset->index().total; ++i) {
    Bytes row(9);
    dataset->read_row(i, row);
    stored.insert(row);
  }
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    for (const std::int64_t batch : {12, 36, 24 * 100}) {
      LoaderPlan plan = plan_of(TextOrder::rows, 8, batch);
      plan.evaluation = true;
      std::multiset<Bytes> taken;
      std::int64_t targets = 0, valid = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const LoaderPlan part = text_part_of(plan, rank, ranks);
        Loader loader(dataset, part);
        for (std::int64_t step = 0; step < steps_per_epoch(dataset->index(), part); ++step) {
          const MicroBatch& micro = loader.next();
          valid += micro.valid_rows;
          targets += micro.step_targets;
          EXPECT_EQ(counted_targets({micro.targets.begin(), micro.targets.end()}), micro.step_targets);
          for (std::size_t row = 0; row < static_cast<std::size_t>(micro.valid_rows); ++row) {
            Bytes whole(micro.inputs.begin() + static_cast<std::ptrdiff_t>(8 * row),
                        micro.inputs.begin() + static_cast<std::ptrdiff_t>(8 * row + 8));
            whole.push_back(static_cast<std::uint8_t>(micro.targets[8 * row + 7]));
            taken.insert(whole);
          }
          for (const std::uint8_t id : micro.inputs) ASSERT_LT(id, 31);  // padding rows must be valid, too
        }
      }
      EXPECT_EQ(valid, dataset->index().total);
      EXPECT_EQ(targets, 8 * dataset->index().total);
      EXPECT_TRUE(taken == stored) << ranks << " ranks, batch " << batch;
    }
  }
}

TEST_F(LoaderTest, EvaluationOfTextPredictsEveryCharacterOnce) {
  for (const std::int64_t length : {2, 3, 10, 11, 12, 997, 1000}) {
    const auto dataset = text(length);
    Bytes all(static_cast<std::size_t>(length));
    dataset->read_text(0, all);
    std::multiset<std::pair<int, int>> expected;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) expected.insert({all[i], all[i + 1]});
    for (const TextOrder order : {TextOrder::windows, TextOrder::streams}) {
      for (const std::int64_t ranks : {1, 2, 3, 4}) {
        LoaderPlan plan = plan_of(order, 5, 12);
        plan.evaluation = true;
        plan.threads = 2;
        std::multiset<std::pair<int, int>> found;
        std::int64_t targets = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const LoaderPlan part = text_part_of(plan, rank, ranks, ranks == 2 ? 3 : 1);
          Loader loader(dataset, part);
          for (std::int64_t step = 0; step < steps_per_epoch(dataset->index(), part); ++step) {
            for (std::int64_t micro = 0; micro < part.rows / part.micro_batch; ++micro) {
              const MicroBatch& batch = loader.next();
              EXPECT_EQ(batch.resets_state, order == TextOrder::streams && step == 0);
              if (micro == 0) targets += batch.step_targets;
              for (std::size_t i = 0; i < batch.targets.size(); ++i) {
                if (batch.targets[i] == ignored_target) continue;
                EXPECT_LT(static_cast<std::int64_t>(i) / 5, batch.valid_rows);
                found.insert({batch.inputs[i], batch.targets[i]});
              }
            }
          }
        }
        EXPECT_EQ(targets, length - 1);
        EXPECT_TRUE(found == expected) << "length " << length << ", ranks " << ranks << ", order " << int(order);
      }
    }
  }
}

TEST_F(LoaderTest, StreamsContinueWhereTheyStopped) {
  const auto dataset = text(5003);
  const LoaderPlan plan = plan_of(TextOrder::streams, 7, 6);
  const std::int64_t piece = 5002 / 6, steps = steps_per_epoch(dataset->index(), plan);
  EXPECT_EQ(steps, piece / 7);
  EXPECT_EQ(samples_per_epoch(dataset->index(), plan), 6 * steps);
  Loader loader(dataset, plan);
  std::vector<Bytes> streams(6);
  for (std::int64_t step = 0; step < steps; ++step) {
    const MicroBatch& batch = loader.next();
    EXPECT_EQ(batch.resets_state, step == 0);
    for (std::size_t row = 0; row < 6; ++row) {
      if (step == 0) streams[row].push_back(batch.inputs[row * 7]);
      EXPECT_EQ(streams[row].back(), batch.inputs[row * 7]);  // the last target is the next input
      for (std::size_t i = 0; i < 7; ++i) streams[row].push_back(static_cast<std::uint8_t>(batch.targets[row * 7 + i]));
    }
  }
  EXPECT_TRUE(loader.next().resets_state);  // the next epoch begins
  for (std::int64_t row = 0; row < 6; ++row) {
    Bytes expected(static_cast<std::size_t>(7 * steps + 1));
    dataset->read_text(row * piece, expected);
    EXPECT_EQ(streams[static_cast<std::size_t>(row)], expected);
  }
}

TEST_F(LoaderTest, WindowsDoNotOverlapAndTheirPhaseChangesWithTheEpoch) {
  const auto dataset = text(2003);
  const LoaderPlan plan = plan_of(TextOrder::windows, 10, 3);
  const std::int64_t samples = samples_per_epoch(dataset->index(), plan);
  EXPECT_EQ(samples, (2003 - 10) / 10);
  Bytes all(2003);
  dataset->read_text(0, all);
  std::set<std::int64_t> phases;
  for (std::int64_t epoch = 0; epoch < 12; ++epoch) {
    std::set<std::int64_t> starts;
    for (const TextStep& step : global_steps(dataset, plan, 1, 1, samples / 3, epoch)) {
      for (std::int64_t row = 0; row < 3; ++row) {
        Bytes window(step.inputs.begin() + row * 10, step.inputs.begin() + row * 10 + 10);
        window.push_back(static_cast<std::uint8_t>(step.targets[static_cast<std::size_t>(row * 10 + 9)]));
        starts.insert(std::search(all.begin(), all.end(), window.begin(), window.end()) - all.begin());
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(starts.size()), samples / 3 * 3);
    for (const std::int64_t start : starts) EXPECT_EQ(start % 10, *starts.begin() % 10);
    phases.insert(*starts.begin() % 10);
  }
  EXPECT_GT(phases.size(), 4u);
}

TEST_F(LoaderTest, SeekGivesWhatContinuingWouldHaveGiven) {
  for (const TextOrder order : {TextOrder::rows, TextOrder::windows, TextOrder::streams}) {
    const bool rows = order == TextOrder::rows;
    const auto dataset = rows ? names() : text(3001);
    LoaderPlan plan = text_part_of(plan_of(order, rows ? 8 : 9, 24), 1, 2, 3);
    plan.threads = 2;
    const std::int64_t steps = steps_per_epoch(dataset->index(), plan);
    struct Seen {
      std::int64_t epoch, offset, micro_step;
      Bytes inputs;
      Targets targets;
      bool operator==(const Seen&) const = default;
    };
    const auto take = [](Loader& loader) {
      const MicroBatch& b = loader.next();
      return Seen{
          b.epoch, b.offset, b.micro_step, {b.inputs.begin(), b.inputs.end()}, {b.targets.begin(), b.targets.end()}};
    };
    std::vector<Seen> all;
    Loader loader(dataset, plan);
    for (std::int64_t i = 0; i < 3 * (2 * steps + 2); ++i) all.push_back(take(loader));
    for (const std::int64_t start : {std::int64_t{1}, steps - 1, steps, steps + 1, std::int64_t{0}}) {
      loader.seek(start / steps, start % steps * plan.global_batch);  // also in the middle of prefetching
      for (std::size_t i = 0; i < 7; ++i)
        EXPECT_TRUE(take(loader) == all[static_cast<std::size_t>(3 * start) + i]) << start;
    }
    EXPECT_THROW(loader.seek(0, steps * plan.global_batch), Error);
    EXPECT_THROW(loader.seek(-1, 0), Error);
  }
}

// When the batch changes in the middle of an epoch, the offset need not be a multiple of the new batch.
TEST_F(LoaderTest, AnEpochMayBeTakenUpAtAnySampleAndTheNextOneBeginsAtItsFirst) {
  const auto dataset = names();
  const LoaderPlan small = plan_of(TextOrder::rows, 8, 6), large = plan_of(TextOrder::rows, 8, 24);
  const std::int64_t samples = dataset->index().total, first = 30;
  const std::vector<TextStep> expected = global_steps(dataset, small, 1, 1, samples / 6);
  Loader loader(dataset, large);
  loader.seek(0, first);
  std::int64_t offset = first;
  for (; offset + 24 <= samples; offset += 24) {
    const MicroBatch& batch = loader.next();
    EXPECT_EQ(batch.epoch, 0);
    EXPECT_EQ(batch.offset, offset);
    Bytes inputs;
    for (std::int64_t part = 0; part < 4; ++part) {
      const Bytes& piece = expected[static_cast<std::size_t>(offset / 6 + part)].inputs;
      inputs.insert(inputs.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), batch.inputs.begin(), batch.inputs.end())) << offset;
  }
  for (const std::int64_t next : {0, 24, 48}) {
    const MicroBatch& batch = loader.next();
    EXPECT_EQ(batch.epoch, 1);
    EXPECT_EQ(batch.offset, next);
  }
}

TEST_F(LoaderTest, AnEvaluationCanBeRepeated) {
  const auto dataset = names();
  LoaderPlan plan = plan_of(TextOrder::rows, 8, 100);
  plan.evaluation = true;
  Loader loader(dataset, plan);
  const std::int64_t steps = steps_per_epoch(dataset->index(), plan);
  for (int pass = 0; pass < 3; ++pass) {
    loader.seek(0, 0);
    std::int64_t rows = 0;
    for (std::int64_t step = 0; step < (pass == 1 ? steps - 1 : steps); ++step) {
      const MicroBatch& batch = loader.next();
      EXPECT_EQ(batch.epoch, 0);
      EXPECT_EQ(batch.offset, step * plan.global_batch);
      rows += batch.valid_rows;
    }
    EXPECT_EQ(rows, pass == 1 ? (steps - 1) * 100 : dataset->index().total);
  }
}

TEST_F(LoaderTest, ErrorsOfLoaderThreadsComeOutOfNextInTheirPlace) {
  names(1);
  const std::string file = shard_path(path("names-train"), 0, 1);
  const std::uint64_t offset = read_shard_header(file).byte_offset;
  std::fstream(file, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(offset + 5))
      .put(static_cast<char>(99));
  LoaderPlan plan = plan_of(TextOrder::rows, 8, 16);
  plan.threads = 3;
  Loader loader(std::make_shared<TextDataset>(read_dataset_index(path("names-train"))), plan);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      loader.next();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("wrong CRC-32C"), std::string::npos) << error.what();
    }
  }
}

TEST_F(LoaderTest, EndsAtOnceWhateverItsThreadsAreDoing) {
  const auto dataset = names();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    LoaderPlan plan = plan_of(TextOrder::rows, 8, 64);
    plan.threads = 1 + i % 4;
    Loader loader(dataset, plan);
    if (i % 3 > 0) loader.seek(i % 5, plan.global_batch);
    for (int n = 0; n < i % 7; ++n) loader.next();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(LoaderTest, ImpossiblePlansAreErrors) {
  const auto dataset = names();
  const auto message = [&](const LoaderPlan& plan, const TextDataset& data) -> std::string {
    try {
      steps_per_epoch(data.index(), plan);
    } catch (const Error& error) {
      return error.what();
    }
    return "(no error)";
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message(plan_of(TextOrder::rows, 8, 1 << 20), *dataset), "samples, but the global batch is 1048576");
  expect(message(plan_of(TextOrder::rows, 9, 8), *dataset), "have a context of 8");
  expect(message(plan_of(TextOrder::windows, 8, 8), *dataset),
         "holds names, which cannot be read as windows or streams");
  LoaderPlan plan = plan_of(TextOrder::rows, 8, 8);
  plan.micro_batch = 3;
  expect(message(plan, *dataset), "impossible loader plan");
  const auto running = text(100);
  expect(message(plan_of(TextOrder::rows, 8, 8), *running), "holds running text, which cannot be read as rows");
  expect(message(plan_of(TextOrder::windows, 10, 10), *running),
         "has 100 characters, too few for one step of batch.global 10 windows");
  expect(message(plan_of(TextOrder::streams, 10, 10), *running), "too few for one step of batch.global 10 streams");
}

TEST_F(LoaderTest, MemoryIsTheRing) {
  LoaderPlan plan = plan_of(TextOrder::rows, 8, 64);
  plan.prefetch = 3;
  EXPECT_EQ(Loader::memory_bytes(names()->index(), plan), 4 * 64 * 8 * (1 + 4));
}

}  // namespace
}  // namespace ringtrain
