#include "study/expression.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr int most_nested = 100;  // parentheses and signs; the parser calls itself for each of them

struct Function {
  std::string_view name;
  double (*of)(double);  // null for functions of two or more values
};
constexpr std::array<Function, 11> functions = {{{"sqrt", [](double x) { return std::sqrt(x); }},
                                                 {"abs", [](double x) { return std::abs(x); }},
                                                 {"exp", [](double x) { return std::exp(x); }},
                                                 {"log", [](double x) { return std::log(x); }},
                                                 {"log2", [](double x) { return std::log2(x); }},
                                                 {"log10", [](double x) { return std::log10(x); }},
                                                 {"floor", [](double x) { return std::floor(x); }},
                                                 {"ceil", [](double x) { return std::ceil(x); }},
                                                 {"round", [](double x) { return std::round(x); }},
                                                 {"min", nullptr},
                                                 {"max", nullptr}}};

const Function* find_function(std::string_view name) {
  const auto* found = std::ranges::find(functions, name, &Function::name);
  return found == functions.end() ? nullptr : found;
}

bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_of_name(char c) {
  return starts_name(c) || is_digit(c) || c == '.';
}

double result_of(const std::string& word, const double* v, std::size_t count) {
  if (word == "+") return v[0] + v[1];
  if (word == "-") return v[0] - v[1];
  if (word == "*") return v[0] * v[1];
  if (word == "/") return v[0] / v[1];
  if (word == "^") return std::pow(v[0], v[1]);
  if (word == "-1") return -v[0];
  if (word == "min") return *std::min_element(v, v + count);
  if (word == "max") return *std::max_element(v, v + count);
  return find_function(word)->of(v[0]);
}

std::string shown_operation(const std::string& word, const double* v, std::size_t count) {
  if (count == 2 && !find_function(word)) return cat(v[0], " ", word, " ", v[1]);
  return cat(word == "-1" ? "-" : word, "(", joined(std::span(v, count)), ")");
}

}  // namespace

std::string TextPlace::prefix(std::size_t offset) const {
  return cat(path, ":", line, ":", column + static_cast<int>(offset), ": ");
}

// A recursive descent parser for one text.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const TextPlace& place) : text_(text), place_(place) { skip_blanks(); }

  Expression sum_as_expression() {
    expression_ = Expression();
    const std::size_t begin = at_;
    sum();
    std::string_view own = text_.substr(begin, at_ - begin);
    own = own.substr(0, own.find_last_not_of(' ') + 1);
    expression_.text_ = own;
    expression_.place_ = place_;
    return std::move(expression_);
  }

  // Takes one of =, <, <=, >, >= from the text. Returns "" if the text continues with something else.
  std::string comparison_sign() {
    for (const std::string_view sign : {"<=", ">=", "=", "<", ">"})
      if (text_.substr(at_).starts_with(sign)) {
        at_ += sign.size();
        skip_blanks();
        return std::string(sign);
      }
    return "";
  }

  void expect_end(const std::string& expected) const {
    if (at_ == text_.size()) return;
    const std::string found = next_symbol();
    const bool power = found == "*" && at_ > 0 && text_[at_ - 1] == '*';
    fail(cat("unexpected ", shown(found), ", expected ", expected), power ? "Powers are written 2^3." : "");
  }

  [[noreturn]] void fail(const std::string& what, const std::string& hint = "") const {
    throw Error(place_.prefix(at_) + what, hint);
  }

 private:
  void sum() {
    product();
    while (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) binary(&ExpressionParser::product);
  }
  void product() {
    sign();
    while (at_ < text_.size() && (text_[at_] == '*' || text_[at_] == '/')) binary(&ExpressionParser::sign);
  }
  void sign() {
    if (++nested_ > most_nested) fail("more than 100 signs and parentheses within each other");
    if (at_ < text_.size() && text_[at_] == '-') {
      const std::size_t offset = at_++;
      skip_blanks();
      sign();
      add({"-1", 1, offset});
    } else {
      power();
    }
    --nested_;
  }
  void power() {
    value();
    if (at_ < text_.size() && text_[at_] == '^') binary(&ExpressionParser::sign);
  }
  void binary(void (ExpressionParser::*right)()) {
    const std::size_t offset = at_;
    const std::string word(1, text_[at_++]);
    skip_blanks();
    (this->*right)();
    add({word, 2, offset});
  }

  void value() {
    if (at_ == text_.size())
      fail(cat(text_.empty() ? "an empty expression" : "the expression ends here",
               ", expected a number, a key, a function or ("));
    if (is_digit(text_[at_])) return number();
    if (starts_name(text_[at_])) return name_or_function();
    if (text_[at_] != '(')
      fail(cat("unexpected ", shown(next_symbol()), ", expected a number, a key, a function or ("));
    const std::size_t open = at_++;
    skip_blanks();
    sum();
    close(open);
  }

  void number() {
    const std::size_t offset = at_;
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    std::size_t after = static_cast<std::size_t>(end - text_.data());
    if (after < text_.size() && is_of_name(text_[after])) {
      while (after < text_.size() && is_of_name(text_[after])) ++after;
      fail(cat(shown(text_.substr(offset, after - offset)),
               " is not a number, expected one such as 4096, 0.001 or 1.0e-8"));
    }
    if (error != std::errc()) fail(cat(shown(text_.substr(offset, after - offset)), " is too large or too small"));
    at_ = after;
    skip_blanks();
    add({"", 0, offset, value});
  }

  void name_or_function() {
    const std::size_t offset = at_;
    while (at_ < text_.size() && is_of_name(text_[at_])) ++at_;
    const std::string name(text_.substr(offset, at_ - offset));
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != '(') {
      if (find_function(name)) at_ = offset, fail(cat(name, " is a function, expected ", name, "(...)"));
      expression_.names_.push_back({name, offset});
      return add({"name", 0, offset, 0, expression_.names_.size() - 1});
    }
    const Function* function = find_function(name);
    if (function == nullptr) at_ = offset, unknown_function(name);
    const std::size_t open = at_++;
    std::size_t count = 0;
    do {
      if (count > 0) ++at_;
      skip_blanks();
      sum();
      ++count;
    } while (at_ < text_.size() && text_[at_] == ',');
    close(open);
    if (function->of != nullptr ? count != 1 : count < 2) {
      at_ = offset;
      fail(cat(name, " of ", count, count == 1 ? " value" : " values", ", expected ",
               function->of != nullptr ? "one" : "two or more"));
    }
    add({name, count, offset});
  }

  [[noreturn]] void unknown_function(const std::string& name) const {
    std::vector<std::string_view> names;
    for (const Function& f : functions) names.push_back(f.name);
    fail(cat("unknown function ", shown(name), nearest_word(name, names)), cat("Functions: ", joined(names), "."));
  }

  void close(std::size_t open) {
    if (at_ == text_.size() || text_[at_] != ')')
      fail(cat("the ( at column ", place_.column + static_cast<int>(open), " is not closed, expected )"));
    ++at_;
    skip_blanks();
  }

  void add(Expression::Operation operation) { expression_.operations_.push_back(std::move(operation)); }
  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  std::string next_symbol() const {
    return std::string(text_.substr(at_, std::max<std::size_t>(1, symbol_length(text_.substr(at_)))));
  }

  std::string_view text_;
  const TextPlace& place_;
  std::size_t at_ = 0;
  int nested_ = 0;
  Expression expression_;
};

Expression Expression::parse(std::string_view text, const TextPlace& place) {
  ExpressionParser parser(text, place);
  Expression expression = parser.sum_as_expression();
  parser.expect_end("an operator, or the end");
  return expression;
}

double Expression::evaluate(const std::function<double(const Name&)>& value_of) const {
  std::vector<double> stack;
  for (const Operation& o : operations_) {
    if (o.word.empty() || o.word == "name") {
      stack.push_back(o.word.empty() ? o.number : value_of(names_[o.name]));
      continue;
    }
    const double* values = stack.data() + (stack.size() - o.count);
    const double result = result_of(o.word, values, o.count);
    if (!std::isfinite(result))
      throw Error(cat(place_.prefix(o.offset), shown_operation(o.word, values, o.count), " is not a finite number"));
    stack.resize(stack.size() - o.count);
    stack.push_back(result);
  }
  return stack.back();
}

Comparison Comparison::parse(std::string_view text, const TextPlace& place) {
  ExpressionParser parser(text, place);
  Comparison comparison;
  comparison.left = parser.sum_as_expression();
  comparison.op = parser.comparison_sign();
  if (comparison.op.empty()) {
    parser.expect_end("an operator, or one of = < <= > >=");
    parser.fail("no comparison, expected one of = < <= > >= and a second side",
                "A rule that sets a key is written key: expression.");
  }
  comparison.right = parser.sum_as_expression();
  parser.expect_end("an operator, or the end");
  return comparison;
}

bool Comparison::holds(const std::function<double(const Expression::Name&)>& value_of) const {
  const double a = left.evaluate(value_of), b = right.evaluate(value_of);
  const bool equal = std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
  if (op == "=") return equal;
  if (op == "<") return a < b && !equal;
  if (op == ">") return a > b && !equal;
  return equal || (op == "<=" ? a < b : a > b);
}

std::string Comparison::text() const {
  return cat(left.text(), " ", op, " ", right.text());
}

}  // namespace ringtrain
