// Flips a bit in one rank's copy of the weights or state. The step in which the ranks compare their copies must name
// the rank, its host and the tensor, with the same text on all ranks.
#include "train/replica_check.h"

#include <unistd.h>

#include "one_rank.h"
#include "tests/unit/image_shards.h"

namespace ringtrain {
namespace {

class ReplicaCheckTest : public TrainerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TrainerTest::SetUp());
    write_image_shards((folder_ / "images").string(), raw_images(144, 16, 16), 2);
  }
  // A residual network with batch norm.
  Experiment images(const Settings& more) const {
    return image_experiment("images", 16,
                            "model: {kind: resnet, depth: 18, width: 16, stem: small}\n"
                            "batch: {global: 24, worker: 2, micro: 2}\n"
                            "optimizer: {kind: sgd, momentum: 0.9}\nlearning_rate: {base: 0.01}\n",
                            more);
  }
  static Settings flips(const std::string& tensor, const Settings& more = {}) {
    Settings all = {"communication.check_every_steps=2", cat("test.flip_bit_rank=", session().size() - 1),
                    "test.flip_bit_step=2", "test.flip_bit_in=" + tensor};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::string host() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
  }
  // Returns the message for a flip on the last rank. `ranks` are the ranks whose copies are compared.
  static std::string difference(const std::vector<int>& ranks, const std::string& tensor,
                                const std::string& group = "") {
    std::string who;
    if (ranks.size() == 2)
      who = cat("ranks ", ranks[0], " on ", host(), " and ", ranks[1], " on ", host(),
                " have different copies of the model");
    else
      who = cat("rank ", ranks.back(), " on ", host(), " has a copy of the model that differs from that of the ",
                ranks.size() - 1, " other ranks");
    return cat("after step 2, ", who, group, "; the first tensor that differs is ", tensor);
  }
  static std::vector<int> all_ranks() {
    std::vector<int> ranks;
    for (int rank = 0; rank < session().size(); ++rank) ranks.push_back(rank);
    return ranks;
  }
  // The second step finds no difference, and the third one finds it.
  static void expect_found(TrainingRank& run, const std::string& text) {
    run.trainer->compare_copies([] { return KnownCheckpoint{"runs/a/checkpoints/step-1.h5 (after step 1)"}; });
    run.steps(2);
    try {
      run.steps(1);
      ADD_FAILURE() << "not seen, expected: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), text);
      EXPECT_NE(error.hint().find("known to be good, runs/a/checkpoints/step-1.h5 (after step 1),"), std::string::npos)
          << error.hint();
    }
    EXPECT_THROW(run.trainer->check_copies(), Error);  // this check runs before every checkpoint
  }
};

const char* const kTensors[] = {"weights/layer2.0.conv1.weight", "weights/layer3.1.bn2.running_var",
                                "optimizer/momentum/layer1.0.bn1.weight"};

TEST_F(ReplicaCheckTest, FindsAFlippedBitOfTheRing) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has nothing to compare";
  for (const char* tensor : kTensors) {
    TrainingRank run(images(flips(tensor)), false);
    expect_found(run, difference(all_ranks(), tensor));
  }
}

TEST_F(ReplicaCheckTest, FindsItOnDevices) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has nothing to compare";
  for (const char* tensor : {"weights/lstm.weight_hh_l1", "optimizer/exp_avg_sq/linear.bias"}) {
    TrainingRank run(experiment("names", flips(tensor)), true);
    expect_found(run, difference(all_ranks(), tensor));
  }
}

TEST_F(ReplicaCheckTest, FindsItWhereTheUpdateIsShared) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has nothing to compare";
  for (const Settings& way : {Settings{"parallel.shard_state=true"}, Settings{"parallel.kind=server"}}) {
    for (const char* tensor : {kTensors[0], kTensors[1]}) {
      TrainingRank run(images(flips(tensor, way)), false);
      expect_found(run, difference(all_ranks(), tensor));
    }
    // The ranks share this state, so it has no copies to compare. The rank that should flip a bit in it throws.
    TrainingRank run(images(flips(kTensors[2], way)), false);
    run.steps(1);
    if (session().rank() + 1 == session().size())
      EXPECT_THROW(run.steps(1), Error);
    else
      run.steps(1);
  }
}

TEST_F(ReplicaCheckTest, ComparesTheReplicasOfAPipelinesStage) {
  const int size = session().size();
  if (size % 2 != 0) GTEST_SKIP() << "two stages need an even number of ranks";
  const Settings two = {"parallel.kind=pipeline", "parallel.stages=2", "parallel.cuts=[layer2.1]"};
  for (const char* tensor :
       {"weights/layer4.0.conv1.weight", "weights/layer3.1.bn2.running_var", "optimizer/momentum/fc.bias"}) {
    TrainingRank run(images(flips(tensor, two)), false);
    if (size == 2) {
      run.trainer->compare_copies([] { return KnownCheckpoint{}; });
      EXPECT_FALSE(run.trainer->compares_copies());  // only one rank holds a stage
      run.steps(3);
    } else {
      expect_found(run, difference({1, 3}, tensor, " of stage 1"));
    }
  }
}

TEST_F(ReplicaCheckTest, EqualCopiesGoOnWithTheSameBits) {
  for (const Settings& way : {Settings{}, Settings{"parallel.shard_state=true"}, Settings{"parallel.kind=server"}}) {
    Settings often = way, never = way;
    often.push_back("communication.check_every_steps=1");
    never.push_back("communication.check_every_steps=0");
    TrainingRank plain(images(never), false), compared(images(often), false);
    compared.trainer->compare_copies([] { return KnownCheckpoint{}; });
    plain.trainer->compare_copies([] { return KnownCheckpoint{}; });
    EXPECT_FALSE(plain.trainer->compares_copies());
    EXPECT_EQ(compared.trainer->compares_copies(), session().size() > 1);
    plain.steps(2);
    compared.steps(2);
    compared.trainer->check_copies();
    EXPECT_EQ(compared.weights(), plain.weights());
  }
}

// Rank 0's clock asks for the comparison in one step, and all ranks compare in the next one.
TEST_F(ReplicaCheckTest, ComparesWhenRankZeroAsks) {
  if (session().size() == 1) GTEST_SKIP() << "one rank has nothing to compare";
  Settings settings = flips("weights/fc.weight");
  settings[0] = "communication.check_every_steps=-1";
  TrainingRank run(images(settings), false);
  run.trainer->compare_copies([] { return KnownCheckpoint{}; });
  run.steps(3);  // no comparison was asked for
  EXPECT_EQ(run.steps(1, {{}, session().rank() == 0 ? 1.0 : 0.0}).front().requests.check, 1);
  EXPECT_THROW(run.steps(1), Error);
}

TEST_F(ReplicaCheckTest, GroupsAreComparedByThemselves) {
  const auto communicator = make_mpi_communicator(session().job(), 1 << 12);
  const int rank = session().rank(), size = session().size();
  const auto backend = make_cpu_backend(1);
  const auto vector = backend->make_vector(128);
  // Ranks 0 and 2 hold copies of each other, and so do ranks 1 and 3. With three ranks, rank 1 holds the only copy.
  const int group = rank % 2;
  const auto fill = [&](float last) {
    std::vector<float> values(128, static_cast<float>(rank % 2) + 0.5f);
    values[127] = last;
    backend->copy_from_host(values, *vector, 0);
  };
  const auto judge = [&]() -> std::string {
    ReplicaCheck check(*backend, *communicator, {{"a", vector.get(), {0, 64}}, {"b", vector.get(), {64, 128}}},
                       {.index = group, .count = 2, .what = "stage"}, [] { return KnownCheckpoint{}; });
    try {
      check.run(7);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  fill(static_cast<float>(rank % 2));
  EXPECT_EQ(judge(), "");
  fill(static_cast<float>(rank));
  EXPECT_EQ(judge(), size < 3
                         ? ""
                         : cat("after step 7, ranks 0 on ", host(), " and 2 on ", host(),
                               " have different copies of the model of stage 0; the first tensor that differs is b"));
}

TEST_F(ReplicaCheckTest, TheFlippedRankAndTensorExist) {
  EXPECT_THROW(images({"test.flip_bit_rank=0"}), Error);
  EXPECT_THROW(images({"test.flip_bit_step=1"}), Error);
  EXPECT_THROW(images({"test.flip_bit_in=weights/fc.bias"}), Error);
  EXPECT_THROW(TrainingRank(images({cat("test.flip_bit_rank=", session().size()), "test.flip_bit_step=1",
                                    "test.flip_bit_in=weights/fc.bias"}),
                            false),
               Error);
  for (const char* tensor : {"weights/none", "optimizer/momentum/none", "fc.bias"})
    EXPECT_THROW(
        TrainingRank(images({"test.flip_bit_rank=0", "test.flip_bit_step=1", cat("test.flip_bit_in=", tensor)}), false),
        Error)
        << tensor;
}

}  // namespace
}  // namespace ringtrain
