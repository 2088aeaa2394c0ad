// `ringtrain sample` invents names or writes text with the weights of a checkpoint.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

#include "backend/backend.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/table.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/resume.h"
#include "checkpoint/snapshot.h"
#include "commands/commands.h"
#include "data/loader.h"
#include "data/text_dataset.h"
#include "models/models.h"

namespace ringtrain {

namespace {

// Returns the text with capitals at the beginning of words, as in the pet-name study (Nolis 2021). The text must be
// valid UTF-8.
std::string title_case(const std::string& text) {
  std::string result;
  bool at_start = true;
  for (std::size_t i = 0; i < text.size();) {
    const std::string symbol = text.substr(i, symbol_length(std::string_view(text).substr(i)));
    result += at_start ? upper_case(symbol) : symbol;
    at_start = symbol == " " || symbol == "-";
    i += symbol.size();
  }
  return result;
}

// Returns the first symbol of a text, for a message.
std::string first_symbol(std::string_view text) {
  const std::size_t length = symbol_length(text);
  if (length > 0) return cat("'", text.substr(0, length), "'");
  return printed("byte 0x%02X", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
}

// Converts between text and the symbols of a model.
struct Alphabet {
  std::vector<std::string> symbols;
  int pad = -1, stop = -1;
  bool lowercase = false;

  // Returns the symbol with which the text begins; symbols.end(): none.
  auto symbol_of(std::string_view text) const {
    return std::ranges::find_if(symbols, [&](const std::string& s) { return !s.empty() && text.starts_with(s); });
  }
  bool knows(std::string_view text) const {
    while (!text.empty()) {
      const auto found = symbol_of(text);
      if (found == symbols.end()) return false;
      text.remove_prefix(found->size());
    }
    return true;
  }

  std::vector<std::uint8_t> encode(const std::string& prompt) const {
    if (lowercase && find_invalid_utf8(prompt) != std::string_view::npos)
      throw Error("--prompt is not valid UTF-8", "check the terminal's encoding");
    const bool is_text = find_invalid_utf8(prompt) == std::string_view::npos;
    std::string text = lowercase ? lower_case(prompt) : prompt;
    // The converter stores the composed form. Data sets of bytes, and older ones, have the form that was typed.
    if (is_text && !knows(text)) text = composed(text);
    std::vector<std::uint8_t> ids;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(symbols[ids.back()].size())) {
      const auto found = symbol_of(rest);
      const auto id = static_cast<int>(found - symbols.begin());
      if (found == symbols.end() || id == pad || id == stop)
        throw Error(cat("--prompt: the model does not know ", first_symbol(rest)),
                    "a prompt may have the symbols of the training data only");
      ids.push_back(static_cast<std::uint8_t>(id));
    }
    return ids;
  }
  // If the symbols are bytes, the last letter of a text may be incomplete. It is then left out.
  std::string decode(const std::vector<std::uint8_t>& ids) const {
    std::string text;
    for (std::uint8_t id : ids) text += symbols[id];
    return std::string(without_cut_symbol(text));
  }
};

// Draws a symbol from softmax(logits / temperature) with the random number `u` in (0, 1). The symbol `dropped` is never
// drawn (-1: no such symbol). At temperature 0, returns the likeliest symbol.
std::uint8_t draw(std::vector<float> logits, int dropped, double temperature, double u) {
  if (dropped >= 0) logits[static_cast<std::size_t>(dropped)] = -INFINITY;
  const auto top = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<std::uint8_t>(top - logits.begin());
  std::vector<double> weights;
  double total = 0;
  for (float z : logits) {
    weights.push_back(std::exp((static_cast<double>(z) - static_cast<double>(*top)) / temperature));
    total += weights.back();
  }
  std::size_t i = 0;
  for (double left = u * total; i + 1 < weights.size() && left >= weights[i]; ++i) left -= weights[i];
  return static_cast<std::uint8_t>(i);
}

constexpr std::int64_t rows_of_names = 64;  // number of names that are made at a time

struct Model {
  Experiment experiment;
  Alphabet alphabet;
  std::int64_t context = 0;  // 0: running text
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::unique_ptr<Vector> weights;
  std::unique_ptr<Program> program;
  std::int64_t state_size = 0;

  explicit Model(const FoundCheckpoint& found) {
    const auto& [path, checkpoint] = found;
    experiment = experiment_of(checkpoint, path);
    if (takes_images(experiment.model))
      throw Error(cat(path, ": model.kind is ", experiment.model.kind, ", which sees images; sample writes text"),
                  "give a run of char_lstm; ringtrain evaluate judges models of images");
    alphabet.symbols = vocabulary_of(checkpoint);
    alphabet.pad = static_cast<int>(checkpoint.number("pad_id"));
    alphabet.stop = static_cast<int>(checkpoint.number("stop_id"));
    alphabet.lowercase = checkpoint.number("lowercase") != 0;
    context = checkpoint.whole("context_length");
    // Running text is made one symbol at a time, and the LSTM's hidden state is carried from symbol to symbol. For
    // names, the model reads a window of the last symbols each time.
    const Graph graph = build_model(
        experiment.model, {std::max<std::int64_t>(1, context), static_cast<std::int64_t>(alphabet.symbols.size())});
    state_size = graph.state_size();
    const ParameterTable parameters = graph.parameters();
    weights = backend->make_vector(parameters.size());
    std::vector<float> flat(static_cast<std::size_t>(parameters.size()));
    load_weights(checkpoint, parameters, flat);
    backend->copy_from_host(flat, *weights, 0);
    program = backend->compile(graph, makes_names() ? rows_of_names : 1, Precision::fp32, PassMode::inference);
    program->allocate();
    program->set_weights(*weights);
  }
  bool makes_names() const { return context > 0; }
};

// Makes the names with the numbers [first, first + rows_of_names). Each depends on its number and the seed only.
std::vector<std::string> make_names(Model& model, const SampleArguments& arguments,
                                    const std::vector<std::uint8_t>& prompt, std::int64_t first) {
  constexpr std::int64_t rows = rows_of_names;
  constexpr std::size_t longest = 30;  // symbols of a name, as in the pet-name study (Nolis 2021)
  const std::int64_t T = model.context;
  const std::uint64_t key = random_key(arguments.seed, RandomPurpose::sampling);
  std::vector<std::vector<std::uint8_t>> names(rows, prompt);
  std::vector<bool> done(rows, false);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows * T), ignored_target);
  for (std::size_t length = prompt.size(); length < longest; ++length) {
    std::vector<std::uint8_t> inputs(static_cast<std::size_t>(rows * T), static_cast<std::uint8_t>(model.alphabet.pad));
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t n = std::min(names[r].size(), static_cast<std::size_t>(T));
      std::copy(names[r].end() - static_cast<std::ptrdiff_t>(n), names[r].end(),
                inputs.begin() + static_cast<std::ptrdiff_t>((r + 1) * static_cast<std::size_t>(T) - n));
    }
    PassInput pass;
    pass.inputs = inputs.data();
    pass.targets = targets.data();
    model.program->run(pass);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (done[i]) continue;
      const auto place = static_cast<std::uint64_t>(first + r) * 1024 + length;
      const std::uint8_t id =
          draw(model.program->logits(r, T - 1), model.alphabet.pad, arguments.temperature, random_uniform(key, place));
      if (id == model.alphabet.stop)
        done[i] = true;
      else
        names[i].push_back(id);
    }
    if (std::all_of(done.begin(), done.end(), [](bool d) { return d; })) break;
  }
  std::vector<std::string> result;
  for (const auto& name : names) result.push_back(model.alphabet.decode(name));
  return result;
}

int sample_names(Model& model, const SampleArguments& arguments) {
  std::vector<std::string> known;
  bool has_data = true;
  try {
    known = read_known_names(read_dataset_index(model.experiment.data.train));
  } catch (const Error& e) {
    has_data = false;
    if (arguments.new_only) throw;
    log_warning("names of the training set are not marked with *, because it cannot be read: ", e.what());
  }
  const std::vector<std::uint8_t> prompt = model.alphabet.encode(arguments.prompt);
  std::set<std::string> given;
  std::int64_t printed = 0, marked = 0;
  const std::int64_t most = 200 * arguments.count + 10'000;
  for (std::int64_t first = 0; printed < arguments.count && first < most; first += rows_of_names) {
    for (const std::string& name : make_names(model, arguments, prompt, first)) {
      if (printed == arguments.count) break;
      const bool exists = std::binary_search(known.begin(), known.end(), name);
      if (name.empty() || (arguments.new_only && (exists || !given.insert(name).second))) continue;
      std::cout << (model.alphabet.lowercase ? title_case(name) : name) << (exists ? " *" : "") << "\n";
      ++printed;
      marked += exists;
    }
  }
  if (printed < arguments.count)
    log_warning("only ", printed, " of ", arguments.count, " names were found in ", most,
                " tries. The other tries gave an empty name, or a name that --new-only leaves out; try a higher "
                "--temperature");
  if (has_data && !arguments.new_only) std::cout << "(* " << marked << " of " << printed << " names are in the data)\n";
  return 0;
}

int sample_text(Model& model, const SampleArguments& arguments) {
  const std::uint64_t key = random_key(arguments.seed, RandomPurpose::sampling);
  const std::int32_t target = ignored_target;
  const std::int64_t length = arguments.length > 0 ? arguments.length : default_sample_length;
  std::vector<std::uint8_t> prompt = model.alphabet.encode(arguments.prompt);
  if (prompt.empty()) prompt = {0};
  for (std::int64_t text = 0; text < arguments.count; ++text) {
    std::vector<float> state(static_cast<std::size_t>(model.state_size), 0.0f);
    std::vector<std::uint8_t> written = prompt;
    PassInput pass;
    pass.targets = &target;
    PassContext context;
    context.state = state.data();
    for (std::size_t i = 0; i < prompt.size() + static_cast<std::size_t>(length) - 1; ++i) {
      pass.inputs = &written[i];
      model.program->run(pass, context);
      if (i + 1 < written.size()) continue;
      const auto place = (static_cast<std::uint64_t>(text) << 40) + i;
      written.push_back(
          draw(model.program->logits(0, 0), model.alphabet.pad, arguments.temperature, random_uniform(key, place)));
    }
    if (arguments.prompt.empty()) written.erase(written.begin());
    std::cout << model.alphabet.decode(written) << "\n" << (text + 1 < arguments.count ? "----\n" : "");
  }
  return 0;
}

}  // namespace

int sample(const SampleArguments& arguments) {
  Model model(find_weights(arguments.source.path, arguments.source.overrides));
  if (model.makes_names() && arguments.length > 0)
    throw Error(cat("--length is ", arguments.length, ", but the model invents names, and a name ends by itself"),
                "leave out --length; --count sets the number of names");
  if (!model.makes_names() && arguments.new_only)
    throw Error("--new-only is for names, but the model writes running text", "leave out --new-only");
  return model.makes_names() ? sample_names(model, arguments) : sample_text(model, arguments);
}

}  // namespace ringtrain
