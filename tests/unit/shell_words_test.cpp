#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "base/user_text.h"

namespace ringtrain {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::array<char, 256> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), count);
  ::pclose(pipe);
  return text;
}

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
