#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/text.h"

namespace ringtrain {
namespace {

TEST(ShellWords, AShellReadsTheSameWords) {
  const std::vector<std::string> words = {
      "%s\\n", "learning_rate.base=0.1", "batch.schedule=[[1, 4]]", "", "it's $HOME", "a\\b\"c", "~/x", "two\nlines",
      "*;&|"};
  std::string expected;
  for (std::size_t i = 1; i < words.size(); ++i) expected += words[i] + "\n";
  EXPECT_EQ(output_of("printf " + shell_command(words)), expected);
}

TEST(ShellWords, PlainWordsStayAsTheyAre) {
  EXPECT_EQ(shell_command({"study", "a-b.yaml", "run.threads=1", "--resume"}), "study a-b.yaml run.threads=1 --resume");
}

}  // namespace
}  // namespace ringtrain
