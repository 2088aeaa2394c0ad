// The expressions of a study's rules: 0.001 * sqrt(batch.global / 4096).
//
//   comparison = sum ("=" | "<" | "<=" | ">" | ">=") sum
//   sum        = product {("+" | "-") product}
//   product    = sign {("*" | "/") sign}
//   sign       = "-" sign | power
//   power      = value ["^" sign]                      2^3^2 = 2^9, -2^2 = -4
//   value      = number | name | function "(" sum {"," sum} ")" | "(" sum ")"
//   function   = sqrt abs exp log log2 log10 floor ceil round (of one value) | min max (of two or more)
//
// A name is an experiment's key, or a word of the study. Numbers are as in an experiment: 4096, 0.001, 1.0e-8.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// The line and column of a text in its file, both from 1. A place inside the text has the same line and a larger
// column.
struct TextPlace {
  std::string path;
  int line = 1, column = 1;
  std::string prefix(std::size_t offset = 0) const;  // "study.yaml:7:23: "
};

class Expression {
 public:
  // A name, and its distance from place() in characters.
  struct Name {
    std::string name;
    std::size_t offset = 0;
  };

  // Throws Error with the file, line and column of a mistake.
  static Expression parse(std::string_view text, const TextPlace& place);

  const std::string& text() const { return text_; }
  const TextPlace& place() const { return place_; }
  const std::vector<Name>& names() const { return names_; }  // in the order of the text

  // `value_of` returns the value of a name, and may throw. Throws Error if a result is not finite (1 / 0, sqrt(-1)).
  double evaluate(const std::function<double(const Name&)>& value_of) const;

 private:
  friend class ExpressionParser;
  // The expression in postfix order. Each operation takes `count` values from the stack.
  struct Operation {
    std::string word;  // "+", "sqrt"; "-1": unary minus; "": a number; "name": a name
    std::size_t count = 0, offset = 0;
    double number = 0;
    std::size_t name = 0;  // index in names_
  };
  std::string text_;
  TextPlace place_;
  std::vector<Operation> operations_;
  std::vector<Name> names_;
};

// Two expressions that are compared: batch_per_rank * ranks = 16384.
struct Comparison {
  Expression left, right;
  std::string op;  // = < <= > >=

  static Comparison parse(std::string_view text, const TextPlace& place);
  // Two sides count as equal if they differ by at most 1e-9 of the larger one.
  bool holds(const std::function<double(const Expression::Name&)>& value_of) const;
  std::string text() const;
};

}  // namespace ringtrain
