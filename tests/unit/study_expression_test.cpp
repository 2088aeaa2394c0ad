// Tests expressions and conditions of a study's rules: their values, and the column at which an error is reported.
#include <gtest/gtest.h>

#include <cmath>

#include "study/expression.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

const TextPlace place{"s.yaml", 3, 11};

double value_of(const Expression::Name& name) {
  return name.name == "ranks" ? 4 : name.name == "batch.global" ? 16384 : name.name == "x2" ? 0.5 : -3;
}

TEST(StudyExpression, GivesWhatArithmeticSays) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"7", 7},
      {"  0.25 ", 0.25},
      {"1.0e-8", 1e-8},
      {"1e3", 1000},
      {"2 + 3 * 4", 14},
      {"(2 + 3) * 4", 20},
      {"10 - 4 - 3", 3},
      {"64 / 8 / 2", 4},
      {"6 / 2 * 3", 9},
      {"2^3^2", 512},
      {"-2^2", -4},
      {"2^-1", 0.5},
      {"- -3", 3},
      {"2 - -3", 5},
      {"3 * -2", -6},
      {"sqrt(16)", 4},
      {"abs(-2.5)", 2.5},
      {"exp(0)", 1},
      {"log(exp(2))", 2},
      {"log2(4096)", 12},
      {"log10(1000)", 3},
      {"floor(2.7)+ceil(2.2)+round(2.5)", 8},
      {"min(3, 1, 2)", 1},
      {"max(3, 1+4)", 5},
      {"0.001 * sqrt(batch.global / 4096)", 0.002},
      {"batch.global / ranks", 4096},
      {"x2*2", 1},
      {"((((1))))", 1},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_DOUBLE_EQ(Expression::parse(text, place).evaluate(value_of), expected) << text;
}

TEST(StudyExpression, EveryMistakeIsNamedAtItsColumn) {
  const std::string value = "expected a number, a key, a function or (";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "s.yaml:3:11: an empty expression, " + value},
      {"   ", "s.yaml:3:14: the expression ends here, " + value},
      {"1 +", "s.yaml:3:14: the expression ends here, " + value},
      {"* 2", "s.yaml:3:11: unexpected '*', " + value},
      {"1 2", "s.yaml:3:13: unexpected '2', expected an operator, or the end"},
      {"2 ** 3", "s.yaml:3:14: unexpected '*', " + value},
      {"2 x 3", "s.yaml:3:13: unexpected 'x', expected an operator, or the end"},
      {"2x", "s.yaml:3:11: '2x' is not a number, expected one such as 4096, 0.001 or 1.0e-8"},
      {"1.2.3", "s.yaml:3:11: '1.2.3' is not a number, expected one such as 4096, 0.001 or 1.0e-8"},
      {"4_096", "s.yaml:3:11: '4_096' is not a number, expected one such as 4096, 0.001 or 1.0e-8"},
      {"1e999", "s.yaml:3:11: '1e999' is too large or too small"},
      {".5", "s.yaml:3:11: unexpected '.', " + value},
      {"(1 + 2", "s.yaml:3:17: the ( at column 11 is not closed, expected )"},
      {"1 + 2)", "s.yaml:3:16: unexpected ')', expected an operator, or the end"},
      {"2 * sqr(4)", "s.yaml:3:15: unknown function 'sqr'; did you mean 'sqrt'?"},
      {"sqrt 4", "s.yaml:3:11: sqrt is a function, expected sqrt(...)"},
      {"1 + sqrt(1, 2)", "s.yaml:3:15: sqrt of 2 values, expected one"},
      {"min(1)", "s.yaml:3:11: min of 1 value, expected two or more"},
      {"max()", "s.yaml:3:15: unexpected ')', " + value},
      {"1 = 1", "s.yaml:3:13: unexpected '=', expected an operator, or the end"},
      {"1 + \xC3\xA9", "s.yaml:3:15: unexpected '\xC3\xA9', " + value},
      {std::string(200, '('), "s.yaml:3:"},
      {std::string(200, '-') + "1", "s.yaml:3:111: more than 100 signs and parentheses within each other"},
  };
  for (const auto& [text, expected] : cases)
    expect_contains(message_of([&] { Expression::parse(text, place); }), expected);
}

TEST(StudyExpression, AResultThatIsNotFiniteIsNamedAtItsOperation) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1 + 4 / (ranks - 4)", "s.yaml:3:17: 4 / 0 is not a finite number"},
      {"sqrt(other)", "s.yaml:3:11: sqrt(-3) is not a finite number"},
      {"log(0)", "s.yaml:3:11: log(0) is not a finite number"},
      {"10^10^10", "s.yaml:3:13: 10 ^ 1e+10 is not a finite number"},
  };
  for (const auto& [text, expected] : cases)
    expect_contains(message_of([&] { Expression::parse(text, place).evaluate(value_of); }), expected);
}

TEST(StudyExpression, NamesAreGivenWithTheirPlaces) {
  const Expression e = Expression::parse("ranks * min(batch.global, ranks)", place);
  ASSERT_EQ(e.names().size(), 3u);
  EXPECT_EQ(e.names()[1].name, "batch.global");
  EXPECT_EQ(e.names()[1].offset, 12u);
  EXPECT_EQ(e.text(), "ranks * min(batch.global, ranks)");
}

TEST(StudyCondition, ComparesBothSidesUpToRounding) {
  const std::vector<std::pair<std::string, bool>> cases = {{"batch.global / ranks = 4096", true},
                                                           {"batch.global = 4096", false},
                                                           {"0.1 + 0.2 = 0.3", true},
                                                           {"0.1 + 0.2 <= 0.3", true},
                                                           {"0.1 + 0.2 > 0.3", false},
                                                           {"1 < 2", true},
                                                           {"2 < 1", false},
                                                           {"2 >= 2", true},
                                                           {"2>3", false},
                                                           {"3>2", true},
                                                           {"1 <= 0.5", false},
                                                           {"0 = 0", true}};
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(Comparison::parse(text, place).holds(value_of), expected) << text;
  const Comparison c = Comparison::parse("ranks*2  <=  8", place);
  EXPECT_EQ(c.text(), "ranks*2 <= 8");
}

TEST(StudyCondition, EveryMistakeIsNamedAtItsColumn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ranks", "s.yaml:3:16: no comparison, expected one of = < <= > >= and a second side"},
      {"ranks =", "s.yaml:3:18: the expression ends here"},
      {"ranks == 4", "s.yaml:3:18: unexpected '='"},
      {"1 < ranks < 4", "s.yaml:3:21: unexpected '<', expected an operator, or the end"},
      {"ranks 4", "s.yaml:3:17: unexpected '4', expected an operator, or one of = < <= > >="},
  };
  for (const auto& [text, expected] : cases)
    expect_contains(message_of([&] { Comparison::parse(text, place); }), expected);
}

TEST(StudyCondition, ARightSideIsNamedAtItsOwnColumn) {
  const Comparison c = Comparison::parse("1 = 2 / (ranks - 4)", place);
  expect_contains(message_of([&] { c.holds(value_of); }), "s.yaml:3:17: 2 / 0 is not a finite number");
  ASSERT_EQ(c.right.names().size(), 1u);
  EXPECT_EQ(c.right.names()[0].offset, 9u);
}

}  // namespace
}  // namespace ringtrain
