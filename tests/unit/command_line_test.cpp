// Tests the command line: which arguments a declaration accepts, and the help, man page and completion made from it.
#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace ringtrain {
namespace {

struct Boat {
  std::vector<std::string> words, ports;
  std::int64_t oars = 4, sails = 1;
  std::uint64_t seed = 0;
  double depth = 1;
  std::string sail = "square", log;
  bool night = false;
};

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() {
    CLI::App& c = program_.add("row", "Rows to the ports. -j and 'x' are safe\nin .troff \\too.\n\n  as it is");
    add_operands(c, boat_.words, "BOAT [key.path=value ...]");
    c.add_option("--oars", boat_.oars, "so many [4]")->type_name("N")->check(whole_number(1));
    c.add_option("--sail", boat_.sail, "its form")->type_name("square|lateen")->check(one_of({"square", "lateen"}));
    c.add_option("--log", boat_.log, "what to write")
        ->type_name("FILE.csv")
        ->required()
        ->check(file_that_ends_in(".csv"));
    c.add_option("--sails", boat_.sails, "up to 8")->type_name("N")->check(whole_number(1, 8));
    c.add_option("--seed", boat_.seed, "of the waves")->type_name("N")->check(whole_number(0, any_seed));
    c.add_option("--depth", boat_.depth, "of the water")->type_name("M")->check(number(0.5, 100));
    add_list(c, "--ports", boat_.ports, "PORT,...", "in this order");
    c.add_flag("--night", boat_.night, "with lamps");
    program_.add("rest", "Rests.");
    program_.complete_keys({"hull.length=", "hull.width="});
  }

  const CLI::App* parse(std::vector<std::string> words) { return program_.parse(std::move(words)); }
  std::string refusal(std::vector<std::string> words) {
    try {
      program_.parse(std::move(words));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  CommandLine program_{"ferry", "crosses water"};
  Boat boat_;
};

TEST_F(CommandLineTest, WordsReachTheVariablesOfTheirCommand) {
  const CLI::App* command = parse({"row", "dinghy", "--ports", "a,b", "hull.length=3", "--oars=6", "--night", "x=[1,2]",
                                   "--log", "l.csv", "--sail", "lateen", "--seed", "18446744073709551615"});
  EXPECT_EQ(command->get_name(), "row");
  EXPECT_EQ(boat_.words, (std::vector<std::string>{"dinghy", "hull.length=3", "x=[1,2]"}));
  EXPECT_EQ(boat_.ports, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(boat_.oars, 6);
  EXPECT_EQ(boat_.seed, UINT64_MAX);
  EXPECT_EQ(boat_.sail, "lateen");
  EXPECT_TRUE(boat_.night);
  EXPECT_EQ(parse({"rest"})->get_name(), "rest");
}

TEST_F(CommandLineTest, TheNameOfACommandMayBeAnOperandAndSoMayAHyphen) {
  parse({"row", "rest", "-", "--log", "l.csv"});
  EXPECT_EQ(boat_.words, (std::vector<std::string>{"rest", "-"}));
}

TEST_F(CommandLineTest, MistakesAreNamedWithWhatWasExpected) {
  const std::vector<std::string> good = {"row", "dinghy", "--log", "l.csv"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = good;
    words.insert(words.end(), more.begin(), more.end());
    return refusal(words);
  };
  EXPECT_EQ(with({}), "accepted");
  EXPECT_EQ(with({"--oars", "two"}), "ferry row: --oars: 'two', expected a whole number of at least 1");
  EXPECT_EQ(with({"--oars", "2.5"}), "ferry row: --oars: '2.5', expected a whole number of at least 1");
  EXPECT_EQ(with({"--oars", "0"}), "ferry row: --oars: '0', expected a whole number of at least 1");
  for (const char* large : {"1000000000000001", "4294967298000000000", "18446744073709551617"})
    EXPECT_EQ(with({"--oars", large}),
              cat("ferry row: --oars: '", large, "', expected a whole number from 1 to 1000000000000000"));
  for (const char* other : {"010", "0x10", "+3", " 3", "3 ", "-1"})
    EXPECT_EQ(with({"--oars", other}), cat("ferry row: --oars: '", other, "', expected a whole number of at least 1"));
  EXPECT_EQ(with({"--sails", "9", "--seed", "18446744073709551615"}),
            "ferry row: --sails: '9', expected a whole number from 1 to 8");
  EXPECT_EQ(with({"--seed", "18446744073709551616"}),
            "ferry row: --seed: '18446744073709551616', expected a whole number from 0 to 18446744073709551615");
  EXPECT_EQ(with({"--depth", "1e7"}), "ferry row: --depth: '1e7', expected a number from 0.5 to 100");
  EXPECT_EQ(with({"--depth", "nan"}), "ferry row: --depth: 'nan', expected a number of at least 0.5");
  EXPECT_EQ(with({"--oars"}), "ferry row: --oars must be given once, with one value");
  EXPECT_EQ(with({"--oars", "2", "--oars", "3"}), "ferry row: --oars must be given once, with one value");
  EXPECT_EQ(with({"--sail", "latean"}), "ferry row: --sail: 'latean', expected square, lateen; did you mean 'lateen'?");
  EXPECT_EQ(with({"--nigth"}), "ferry row: unknown option --nigth; did you mean '--night'?");
  EXPECT_EQ(with({"--color=red"}), "ferry row: unknown option --color=red");
  EXPECT_EQ(refusal({"row", "--log", "l.txt"}),
            "ferry row: --log: 'l.txt', expected a file that ends in .csv, as l.csv");
  EXPECT_EQ(refusal({"row", "dinghy"}), "ferry row: --log is required");
  EXPECT_EQ(refusal({"rwo"}), "unknown command 'rwo'; expected one of row, rest; did you mean 'row'?");
  EXPECT_EQ(refusal({"rest", "now"}), "ferry rest: unexpected word 'now'");
}

TEST_F(CommandLineTest, HelpShowsEveryCommandAndItsOptions) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"help", "row"}), nullptr);
  const std::string row = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(row.starts_with("ferry row BOAT [key.path=value ...] [--oars N] [--sail square|lateen] --log FILE.csv"))
      << row;
  for (const char* line : {"\n  --oars N              so many [4]\n", "\n  --night               with lamps\n"})
    EXPECT_NE(row.find(line), std::string::npos) << row;
  const std::string all = program_.help();
  EXPECT_NE(all.find("\n  row                Rows to the ports\n  rest               Rests\n"), std::string::npos)
      << all;
}

TEST_F(CommandLineTest, TheManualPageKeepsLettersThatTroffWouldTake) {
  const std::string page = program_.manual_page();
  EXPECT_TRUE(page.starts_with(".TH FERRY 1 ")) << page;
  EXPECT_NE(page.find("\\-j and 'x' are safe\n"), std::string::npos) << page;
  EXPECT_NE(page.find("in .troff \\etoo.\n.PP\n.PP\n.nf\n  as it is\n.fi\n"), std::string::npos) << page;
  EXPECT_NE(page.find(".TP\n.B \\-\\-sail square|lateen\nits form\n"), std::string::npos) << page;
}

TEST_F(CommandLineTest, CompletionKnowsWordsAndKeys) {
  const std::string script = program_.bash_completion();
  EXPECT_NE(script.find("words=\"row rest --help --manual-page --bash-completion\""), std::string::npos) << script;
  EXPECT_NE(script.find("row:--sail) words=\"square lateen\" ;;"), std::string::npos) << script;
  EXPECT_NE(
      script.find(
          "row) options=\"--help --verbose --oars --sail --log --sails --seed --depth --ports --night\" first=\"\" "
          "operands=\" $keys\" ;;"),
      std::string::npos)
      << script;
}

TEST(CommandText, IsWrappedAtSpaces) {
  EXPECT_EQ(wrapped("one two three four", 2, 11, 1), "  one two\n   three\n   four\n");
  EXPECT_EQ(wrapped("a\n\n  b   c", 1, 20), " a\n\n   b   c\n");
  EXPECT_EQ(entry("--long-name", "text", 4, 20), "  --long-name\n        text\n");
  EXPECT_EQ(entry("-a", "some words here", 4, 20), "  -a    some words\n        here\n");
}

}  // namespace
}  // namespace ringtrain
