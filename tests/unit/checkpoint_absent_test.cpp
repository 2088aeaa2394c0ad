// Checkpoints of versions that did not write all that is written now.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

class CheckpointAbsent : public WithFolder {};

TEST_F(CheckpointAbsent, WhatWasNotWrittenReadsAsItsAbsenceAndWhatWasAsItself) {
  Checkpoint written;
  written.step = 3;
  written.texts = {{"machine", "one"}};
  written.numbers = {{"loss_scale", 512}};
  written.arrays = {{"weights/w", {1}, {1.0f}}};
  const std::string file = path("step-000000003.h5");
  write_checkpoint(file, written);
  const Checkpoint read = read_checkpoint(file);
  EXPECT_EQ(read.text_or("machine", ""), "one");
  EXPECT_EQ(read.text_or("fusions", ""), "");
  EXPECT_EQ(read.number_or("loss_scale", 0), 512);
  EXPECT_EQ(read.number_or("loss_scale_steps", 7), 7);
}

}  // namespace
}  // namespace ringtrain
