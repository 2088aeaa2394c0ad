// Tests the one copy of a data set's tables that the ranks of a node share: which rank reads, what the other ranks see,
// and what happens where no memory can be shared.
#include "cluster/node_memory.h"

#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/image_dataset.h"
#include "mpi_tests.h"
#include "run/start.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/image_shards.h"

namespace ringtrain {
namespace {

constexpr std::int64_t samples = 60, shards = 3;
// This is the size of all labels, shapes, sample ids and checksums. Readers also check the start of each file, whose
// bytes are not included.
constexpr std::int64_t one_reading = samples * (4 + 12 + 8 + 4);

class NodeMemory : public ::testing::Test {
 protected:
  NodeMemory() {
    if (session().rank() == 0) write_image_shards(prefix_, raw_images(samples), shards);
    session().job().meet();
    index_ = read_dataset_index(prefix_);
    for (const DatasetIndex::Shard& shard : index_.shards)
      start_bytes_ += std::min<std::int64_t>(4096, static_cast<std::int64_t>(shard.file_bytes));
  }
  ~NodeMemory() override {
    session().job().meet();
    if (session().rank() == 0)
      for (std::int64_t s = 0; s < shards; ++s) std::filesystem::remove(shard_path(prefix_, s, shards));
  }
  static std::string shared_prefix() {
    std::string name = "/tmp/ringtrain-node-" + std::to_string(::getpid());
    name.resize(64);
    MPI_Bcast(name.data(), 64, MPI_CHAR, 0, MPI_COMM_WORLD);
    return name.c_str();
  }
  // Touches all shards in an order of this rank's own. Returns the number of bytes that all ranks of the group have
  // read.
  static std::int64_t bytes_of_all(const Dataset& dataset, const RankGroup& group) {
    const auto& images = dynamic_cast<const ImageDataset&>(dataset);
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::int64_t sample = (i + 17 * group.rank()) % samples;
      EXPECT_EQ(images.record(sample).label, sample % 7);
      EXPECT_EQ(images.record(sample).sample_id, test_sample_id(sample));
    }
    std::int64_t all = 0;
    for (const std::string& bytes : group.gather(std::to_string(dataset.bytes_read()))) all += std::stoll(bytes);
    return all;
  }

  const std::string prefix_ = shared_prefix();
  DatasetIndex index_;
  std::int64_t start_bytes_ = 0;
};

TEST_F(NodeMemory, EachTableIsReadOnceForAllRanksOfANode) {
  const auto dataset = shared_dataset(index_, session().job());
  EXPECT_EQ(bytes_of_all(*dataset, session().job()), one_reading + start_bytes_);
}

TEST_F(NodeMemory, EachNodeReadsForItself) {
  const RankGroup node = *session().job().split(session().rank() % 2);
  const auto dataset = shared_dataset(index_, node);
  EXPECT_EQ(bytes_of_all(*dataset, node), one_reading + start_bytes_);
}

TEST_F(NodeMemory, WhatARankFindsDamagedAllRanksFindDamaged) {
  if (session().rank() == 0) {
    edit(index_.shards[1].path, [](hid_t file) {
      std::vector<std::int32_t> labels(samples / shards, 0);
      labels[5] = 99;
      const h5::Handle dataset(H5Dopen2(file, "labels", H5P_DEFAULT), H5Dclose);
      H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, labels.data());
    });
  }
  session().job().meet();
  const auto dataset = shared_dataset(read_dataset_index(prefix_), session().job());
  const auto& images = dynamic_cast<const ImageDataset&>(*dataset);
  for (int again = 0; again < 2; ++again) {
    try {
      images.record(samples / shards);
      ADD_FAILURE() << "rank " << session().rank() << " sees a damaged shard";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("record 5 has the label 99"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(images.record(0).label, 0);
}

TEST_F(NodeMemory, ARankThatDiedWithALockLeavesItToTheNext) {
  if (session().size() == 1) GTEST_SKIP() << "one rank shares no memory";
  const auto memory = node_memory(session().job(), 16);
  if (session().rank() == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      memory->bytes()[0] = 1;
      new SharedMemory::Lock(*memory, 3);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
  }
  session().job().meet();
  {
    const SharedMemory::Lock lock(*memory, 3);
    ++memory->bytes()[1];
  }
  session().job().meet();
  EXPECT_EQ(memory->bytes()[0], 1);
  EXPECT_EQ(memory->bytes()[1], session().size());
}

// The limit on file sizes is below the size of the shared memory. This stands for a machine that cannot share memory.
TEST_F(NodeMemory, RanksThatCannotShareHaveMemoryOfTheirOwn) {
  constexpr std::size_t bytes = std::size_t{1} << 30;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit low = before;
  low.rlim_cur = bytes / 2;
  ::setrlimit(RLIMIT_FSIZE, &low);
  const auto memory = node_memory(session().job(), bytes);
  ::setrlimit(RLIMIT_FSIZE, &before);
  memory->bytes()[bytes - 1] = static_cast<std::uint8_t>(session().rank() + 1);
  session().job().meet();
  EXPECT_EQ(memory->bytes()[bytes - 1], session().rank() + 1);
  EXPECT_EQ(memory->name(), "");
}

}  // namespace
}  // namespace ringtrain
