#include "backend/cuda/dnn/operations.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain::cuda {
namespace {

using Dimensions = std::vector<std::int64_t>;

// These are the names in keys, in the order of the enumerators.
constexpr std::array<const char*, 4> kind_names = {"conv", "dgrad", "wgrad", "matmul"};
constexpr std::array<const char*, 2> prologue_names = {"", "scale_bias_relu"};
constexpr std::array<const char*, 3> engine_names = {"", "specialised", "hopper"};
constexpr std::array<const char*, 7> epilogue_names = {
    "", "sums", "add", "relu_sums", "relu_sums_output", "add_relu_sums", "bias"};
constexpr std::array<const char*, 4> rnn_algorithm_names = {"standard", "persist_static", "persist_dynamic",
                                                            "persist_small_h"};

template <class Names>
int find_name(const Names& names, const std::string& name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<int>(i);
  return -1;
}

// The tensor is NHWC in memory; its dimensions have cuDNN's order n c h w.
DnnTensor activation(DnnRole role, Type type, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                     bool output = false) {
  return {role, type, {n, c, h, w}, {c * h * w, 1, c * w, c}, output};
}
DnnTensor channels(DnnRole role, Type type, std::int64_t c, bool output = false) {
  return {role, type, {1, c, 1, 1}, {c, 1, c, c}, output};
}
DnnTensor matrix(DnnRole role, Type type, std::int64_t rows, std::int64_t columns, bool transposed,
                 bool output = false) {
  const Dimensions strides = transposed ? Dimensions{rows * columns, 1, rows} : Dimensions{rows * columns, columns, 1};
  return {role, type, {1, rows, columns}, strides, output};
}

class Tensors {
 public:
  explicit Tensors(const DnnOperation& operation) : o_(operation) {}

  std::vector<DnnTensor> of_kind() {
    add_of_kind();
    return std::move(all_);
  }

 private:
  void add_of_kind() {
    switch (o_.kind) {
      case DnnKind::convolution:
        return convolution();
      case DnnKind::data_gradient:
        return data_gradient();
      case DnnKind::weight_gradient:
        return weight_gradient();
      case DnnKind::matmul:
        return matmul();
    }
  }
  DnnTensor in(DnnRole role, bool output = false) const {
    return activation(role, o_.type, o_.n, o_.c, o_.h, o_.w, output);
  }
  DnnTensor out(DnnRole role, bool output = false) const {
    return activation(role, o_.type, o_.n, o_.k, o_.out_h(), o_.out_w(), output);
  }
  DnnTensor weight(DnnRole role, Type type, bool output = false) const {
    return activation(role, type, o_.k, o_.c, o_.r, o_.r, output);
  }
  void add(DnnTensor tensor) { all_.push_back(std::move(tensor)); }
  // Returns the scale or bias of each group; see DnnOperation::groups.
  DnnTensor factors(DnnRole role) const { return {role, Type::fp32, {o_.groups, o_.c, 1, 1}, {o_.c, 1, o_.c, o_.c}}; }
  void sums(std::int64_t c) {
    if (o_.engine == Engine::hopper)
      return add({DnnRole::sum, Type::fp32, {o_.groups, 2 * c, 1, 1}, {2 * c, 1, 2 * c, 2 * c}, true});
    add(channels(DnnRole::sum, Type::fp32, c, true));
    add(channels(DnnRole::sum_other, Type::fp32, c, true));
  }
  void prologue() {
    if (o_.prologue == Prologue::none) return;
    // The specialised engines take factors only in the activations' type. The runtime-compiled engines take fp32
    // factors.
    const Type type = o_.engine == Engine::specialised ? o_.type : Type::fp32;
    add(channels(DnnRole::scale, type, o_.c));
    add(channels(DnnRole::bias, type, o_.c));
  }

  void convolution() {
    add(in(DnnRole::x));
    add(weight(DnnRole::w, o_.type));
    prologue();
    add(out(DnnRole::y, true));
    if (o_.epilogue == Epilogue::sums) sums(o_.k);
  }
  void data_gradient() {
    const Epilogue e = o_.epilogue;
    const bool recomputed = e == Epilogue::relu_sums || e == Epilogue::relu_sums_output;
    add(out(DnnRole::dy));
    add(weight(DnnRole::w, o_.type));
    if (e == Epilogue::add || e == Epilogue::add_relu_sums) add(in(DnnRole::shortcut));
    if (recomputed) {
      add(factors(DnnRole::scale));
      add(factors(DnnRole::bias));
    }
    if (e == Epilogue::add_relu_sums) add(in(DnnRole::output));
    if (recomputed || e == Epilogue::add_relu_sums) add(in(DnnRole::norm_input));
    add(in(DnnRole::dx, true));
    if (e == Epilogue::relu_sums_output) add(in(DnnRole::output, true));
    if (recomputed || e == Epilogue::add_relu_sums) sums(o_.c);
  }
  void weight_gradient() {
    add(in(DnnRole::x));
    add(out(DnnRole::dy));
    prologue();
    // cuDNN writes fp32 from 16-bit inputs only when one more operation follows the product. The multiplication by
    // alpha is that operation.
    if (o_.type != o_.result) add({DnnRole::alpha, Type::fp32, {1, 1, 1, 1}, {1, 1, 1, 1}});
    add(weight(DnnRole::dw, o_.result, true));
  }
  void matmul() {
    add(matrix(DnnRole::a, o_.type, o_.m, o_.k, o_.transposed_a));
    add(matrix(DnnRole::b, o_.type, o_.k, o_.n, o_.transposed_b));
    if (o_.epilogue == Epilogue::bias) add({DnnRole::bias, Type::fp32, {1, 1, o_.n}, {o_.n, o_.n, 1}});
    add(matrix(DnnRole::y, o_.result, o_.m, o_.n, false, true));
  }

  const DnnOperation& o_;
  std::vector<DnnTensor> all_;
};

std::int64_t parse_number(const std::string& text, std::size_t from, const std::string& key) {
  std::int64_t value = 0;
  if (!read_number(std::string_view(text).substr(from), value))
    throw Error(cat("'", text, "' in the operation '", key, "' is not a number"));
  return value;
}

// Parses a part of the key after the type: a size with its letter, "+name", or one of the matmul's words.
void parse_part(const std::string& part, const std::string& key, DnnOperation& o) {
  const std::string name = part.substr(part.empty() ? 0 : 1);
  if (part[0] == '+') {
    if (const int p = find_name(prologue_names, name); p > 0) return void(o.prologue = static_cast<Prologue>(p));
    if (const int e = find_name(epilogue_names, name); e > 0) return void(o.epilogue = static_cast<Epilogue>(e));
    if (const int e = find_name(engine_names, name); e > 0) return void(o.engine = static_cast<Engine>(e));
  } else if (part[0] == '>') {
    for (const Type t : {Type::fp32, Type::bf16, Type::fp16})
      if (name == type_name(t)) return void(o.result = t);
  } else if (part == "ta") {
    return void(o.transposed_a = true);
  } else if (part == "tb") {
    return void(o.transposed_b = true);
  } else if (const std::size_t x = part.find('x'); x != std::string::npos) {
    o.h = parse_number(part.substr(0, x), 0, key);
    o.w = parse_number(part, x + 1, key);
    return;
  } else {
    const std::pair<char, std::int64_t*> sizes[] = {{'n', &o.n}, {'c', &o.c},      {'k', &o.k},       {'m', &o.m},
                                                    {'r', &o.r}, {'s', &o.stride}, {'p', &o.padding}, {'g', &o.groups}};
    for (const auto& [letter, size] : sizes)
      if (part[0] == letter) return void(*size = parse_number(part, 1, key));
  }
  throw Error(cat("'", part, "' in the operation '", key, "' is not known"));
}

}  // namespace

std::int64_t DnnTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t d : dimensions) product *= d;
  return product;
}

double DnnOperation::flops() const {
  if (kind == DnnKind::matmul) return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return 2.0 * static_cast<double>(n * out_h() * out_w()) * static_cast<double>(k * c * r * r);
}

std::vector<DnnTensor> DnnOperation::tensors() const {
  return Tensors(*this).of_kind();
}

std::string DnnOperation::key() const {
  const bool is_tf32 = type == Type::fp32 && math == Math::tf32;
  std::string text = cat(kind_names[static_cast<std::size_t>(kind)], " ", is_tf32 ? "tf32" : type_name(type));
  if (kind == DnnKind::matmul) {
    text += cat(" m", m, " n", n, " k", k, transposed_a ? " ta" : "", transposed_b ? " tb" : "");
    text += cat(" >", type_name(result));
  } else {
    text += cat(" n", n, " c", c, " ", h, "x", w, " k", k, " r", r, " s", stride, " p", padding);
    if (groups != 1) text += cat(" g", groups);
    if (result != Type::fp32) text += cat(" >", type_name(result));
  }
  if (prologue != Prologue::none) text += cat(" +", prologue_names[static_cast<std::size_t>(prologue)]);
  if (epilogue != Epilogue::none) text += cat(" +", epilogue_names[static_cast<std::size_t>(epilogue)]);
  if (engine != Engine::general) text += cat(" +", engine_names[static_cast<std::size_t>(engine)]);
  return text;
}

DenseProducts dense_products(Type type, Math math, std::int64_t rows, std::int64_t input, std::int64_t output,
                             Type result) {
  const auto product = [&](std::int64_t m, std::int64_t k, std::int64_t n, Type to) {
    return DnnOperation{.kind = DnnKind::matmul, .type = type, .math = math, .n = n, .k = k, .m = m, .result = to};
  };
  DenseProducts products{product(rows, input, output, result), product(rows, output, input, type),
                         product(output, rows, input, Type::fp32)};
  products.forward.transposed_b = true;
  products.weight_gradient.transposed_a = true;
  return products;
}

DnnOperation parse_operation(const std::string& key) {
  std::istringstream in(key);
  std::string kind, type, part;
  in >> kind >> type;
  DnnOperation o;
  const int k = find_name(kind_names, kind);
  if (k < 0) throw Error(cat("'", kind, "' in the operation '", key, "' is not known"));
  o.kind = static_cast<DnnKind>(k);
  if (type == "bf16" || type == "fp16") {
    o.type = type == "bf16" ? Type::bf16 : Type::fp16;
    o.math = Math::half;
  } else if (type == "tf32") {
    o.math = Math::tf32;
  } else if (type != "fp32") {
    throw Error(cat("'", type, "' in the operation '", key, "' is no precision"));
  }
  while (in >> part) parse_part(part, key, o);
  return o;
}

namespace {

const char* const found_word = "found";
const char* const refused_word = "refused";

}  // namespace

std::string to_line(const PlanAnswer& answer, char separator) {
  std::string text = answer.found ? answer.engine : answer.why;
  std::replace(text.begin(), text.end(), separator, separator == ',' ? ';' : ' ');
  std::replace(text.begin(), text.end(), '\n', ' ');
  return cat(answer.found ? found_word : refused_word, separator, answer.workspace_bytes, separator, text);
}

PlanAnswer parse_answer(const std::string& line, char separator) {
  const std::vector<std::string> parts = split(line, separator, 3);
  PlanAnswer answer;
  if (parts.size() != 3 || (parts[0] != found_word && parts[0] != refused_word) ||
      !read_number(parts[1], answer.workspace_bytes))
    throw Error(
        cat(shown(line),
            " is not a record of a cuDNN plan, expected found or refused, workspace bytes, and the engine or reason"));
  answer.found = parts[0] == found_word;
  (answer.found ? answer.engine : answer.why) = parts[2];
  return answer;
}

const char* rnn_algorithm_name(RnnAlgorithm algorithm) {
  return rnn_algorithm_names[static_cast<std::size_t>(algorithm)];
}

std::string why_excluded(RnnAlgorithm algorithm) {
  const char* const setting = std::getenv("RINGTRAIN_WITHOUT_RNN");
  std::istringstream names(setting != nullptr ? setting : "");
  std::string why;
  for (std::string name; std::getline(names, name, ',');) {
    if (find_name(rnn_algorithm_names, name) < 0)
      throw Error(
          cat("RINGTRAIN_WITHOUT_RNN names '", name, "', which is no algorithm of a recurrent layer"),
          "Choose from standard, persist_static, persist_dynamic and persist_small_h, with commas between them.");
    if (name == rnn_algorithm_name(algorithm)) why = "excluded by RINGTRAIN_WITHOUT_RNN";
  }
  return why;
}

std::string RnnOperation::key() const {
  return cat("lstm ", type_name(type), math == Math::tf32 ? " tf32" : "", " layers", layers, " input", input, " hidden",
             hidden, " length", length, " batch", batch, " ", rnn_algorithm_name(algorithm),
             training ? " training" : " inference");
}

double RnnOperation::flops() const {
  const double columns = static_cast<double>(input + (layers - 1) * hidden + layers * hidden);
  return 2.0 * 4.0 * static_cast<double>(hidden) * columns * static_cast<double>(length * batch);
}

}  // namespace ringtrain::cuda
