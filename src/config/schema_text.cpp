#include "config/schema_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/batch_course.h"

namespace ringtrain {
namespace {

struct SectionText {
  std::string_view name, text;
};
constexpr SectionText section_texts[] = {
    {"", "Keys without a section."},
    {"model", "What is trained."},
    {"data", "The data sets. `bin/ringtrain-data` makes them."},
    {"batch", "global = workers x worker = ranks x accumulation x micro."},
    {"loss", "The loss that training minimises is the cross-entropy."},
    {"loss_scale", "Loss scaling keeps small gradients of fp16 from becoming zero."},
    {"optimizer", "How a gradient becomes an update."},
    {"optimizer.half_life",
     "Half-lives of the optimizer's averages, in samples. A step of B samples multiplies the memory by 2^(-B / "
     "half_life). That is the factor momentum, beta1 or beta2 of this step. The memory of an optimizer, counted in "
     "samples, thus stays the same when the batch changes. Marek et al. 2025 (arXiv:2507.07101) propose it for beta2, "
     "in tokens, and leave beta1 as it is. A half-life and the factor that it replaces cannot both be given: where the "
     "file gives the factor, `optimizer.beta2=null` takes it back. `ringtrain plan` prints both forms."},
    {"average",
     "An exponential average of the weights (EMA). Its half-life is in samples, so it is the same average at every "
     "batch: k times the batch decays it by rho^k in place of rho (Busbridge et al. 2023, arXiv:2307.13813). The rule "
     "assumes that the learning rate follows the batch, too."},
    {"learning_rate",
     "The learning rate depends on the position in the run. optimizer.adascale and parallel.staleness_rate: inverse "
     "change it further."},
    {"noise",
     "The gradient noise scale tr(Sigma) / |G|^2, the batch at which a step's noise is as large as its gradient "
     "(McCandlish et al. 2018). The results are in metrics.jsonl and in the run's summary."},
    {"branch", "The run goes on from a checkpoint of another run, with a multiple of its batch."},
    {"stop", "The run ends at the first limit that it reaches; one must be given."},
    {"evaluate",
     "How often the model is evaluated on the validation data. The end of the run always has an evaluation."},
    {"checkpoint",
     "How often a checkpoint is written, from which the run can be resumed. The end of the run always has one."},
    {"machine", "The devices and how they are used. These keys change the speed, not the meaning of the result."},
    {"communication",
     "How gradients are averaged between ranks. These keys change the speed, not the meaning of the result. The "
     "exception is gradient_type, which rounds the gradients that are sent."},
    {"parallel", "How the ranks share the weights, the optimizer's state and the work."},
    {"memory", "How a run is made to fit in memory. These keys change speed and memory, not the result."},
    {"test",
     "Faults that are made on purpose, for tests and experiments: a slow rank, and a rank with a memory error."},
    {"run", "The folder and the output of the run. These keys do not change the result."},
};

// Very small and very large numbers are written as 1.0e-08, because YAML 1.1 reads 1e-08 as text.
std::string number_text(double value) {
  std::string text = shortest(value);
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// Writes text without quotes if every reader of YAML reads it as text. "3x3" and "1f1b" are text; "0x3" is a number.
std::string text_text(const std::string& text) {
  static constexpr std::string_view reserved[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  const std::string lower = ascii_lower(text);
  const bool letter = !text.empty() && lower[0] >= 'a' && lower[0] <= 'z';
  const bool starts_with_digit =
      !text.empty() && lower[0] >= '1' && lower[0] <= '9' && lower.find_first_of("xf") != std::string::npos;
  const bool plain = (letter || starts_with_digit) &&
                     lower.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_./-") == std::string::npos &&
                     std::find(std::begin(reserved), std::end(reserved), lower) == std::end(reserved);
  return plain ? text : quoted(text);
}

// These write a value of each type that a field may have.
std::string item_text(const std::string& text) {
  return text_text(text);
}
std::string item_text(bool value) {
  return value ? "true" : "false";
}
std::string item_text(double value) {
  return number_text(value);
}
std::string item_text(std::integral auto value) {
  return std::to_string(value);
}
std::string item_text(const EpochFactor& pair) {
  return cat("[", number_text(pair.epoch), ", ", number_text(pair.factor), "]");
}
std::string item_text(const RunPoint& point) {
  return to_string(point);
}
template <class Item>
std::string item_text(const std::vector<Item>& items) {
  return cat("[", joined(items, ", ", [](const Item& item) { return item_text(item); }), "]");
}

std::string range_text(const Range& range, bool integer) {
  const bool low = range.low > std::numeric_limits<double>::lowest();
  const bool high = range.high < std::numeric_limits<double>::max();
  if (integer || (low && high && !range.low_open && !range.high_open))
    return cat(" from ", number_text(range.low), " to ", number_text(range.high));
  std::string text;
  if (low) text = cat(range.low_open ? " greater than " : " of at least ", number_text(range.low));
  if (high) text += cat(low ? " and " : " ", range.high_open ? "less than " : "at most ", number_text(range.high));
  return text;
}

template <class List>
std::string join(const List& items, std::string_view between) {
  return joined(items, between, [](std::string_view item) { return item.empty() ? "\"\"" : item; });
}

std::string_view type_text(const Field& field) {
  if (has_type<std::vector<std::string>>(field)) return "list of words";
  if (!field.words_.empty()) return "word";
  if (has_type<std::string>(field)) return "text";
  if (has_type<bool>(field)) return "true or false";
  if (has_type<double>(field)) return "number";
  if (has_type<std::vector<double>>(field)) return "list of numbers";
  if (has_type<std::vector<std::int64_t>>(field)) return "list of integers";
  if (has_type<std::vector<EpochFactor>>(field)) return "list of pairs";
  if (has_type<std::vector<RunPoint>>(field)) return "list of points (epochs or steps)";
  return "integer";
}

std::string indent_of(std::string_view key) {
  return std::string(2 * static_cast<std::size_t>(std::ranges::count(key, '.')), ' ');
}

// Returns the lines that open `section`, and the sections around it, after a line within `last`.
std::string section_lines(std::string_view section, std::string_view last) {
  if (section.empty() || last == section || last.starts_with(cat(section, "."))) return "";
  return cat(section_lines(section_of(section), last), indent_of(section), leaf_of(section), ":\n");
}

template <class Wanted>
std::string yaml_of(const Experiment& experiment, const Wanted& wanted) {
  std::string out;
  std::string_view section;
  for (const Field& field : schema()) {
    if (!wanted(field)) continue;
    out += section_lines(section_of(field.key), section);
    section = section_of(field.key);
    out += cat(indent_of(field.key), leaf_of(field.key), ": ", value_text(field, experiment), "\n");
  }
  return out;
}

}  // namespace

std::string expected(const Field& field) {
  if (has_type<std::vector<std::string>>(field))
    return field.words_.empty() ? "a word, or a list such as [layer2.0, layer3.0] of different words"
                                : cat("a list such as [", join(field.words_, ", "),
                                      "] of different words, each one of ", join(field.words_, ", "));
  if (field.words_.size() == 1) return std::string(field.words_[0]);
  if (!field.words_.empty()) return "one of " + join(field.words_, ", ");
  if (field.folder_name_) return "at most 100 letters, digits, '.', '_' and '-' that do not start with '.'";
  if (has_type<std::string>(field)) return field.required_ ? "text" : "text (\"\" for none)";
  if (has_type<bool>(field)) return "true or false";
  if (has_type<std::uint64_t>(field)) return cat("an integer from 0 to ", std::numeric_limits<std::uint64_t>::max());
  if (has_type<std::int64_t>(field)) return "an integer" + range_text(field.range_, true);
  if (has_type<double>(field)) return "a number" + range_text(field.range_, false);
  if (has_type<std::vector<EpochFactor>>(field))
    return cat("a list of pairs such as [[0, 1], [30, 0.1]], each an epoch of at least 0 and a number",
               range_text(field.range_, false));
  if (has_type<std::vector<RunPoint>>(field))
    return cat("a list such as [0.5, 2, 500 steps], each ", expected_run_point);
  if (has_type<std::vector<std::int64_t>>(field))
    return cat("a list of integers such as [32, 64], each", range_text(field.range_, true));
  return cat("a list of numbers such as ", field.range_.high <= 1 ? "[0.5, 1]" : "[30, 60, 80]", ", each",
             range_text(field.range_, false));
}

std::string value_text(const Field& field, const Experiment& experiment) {
  return std::visit([](const auto* value) { return item_text(*value); }, member_of(field, experiment));
}

std::string statement(std::string_view key, const Experiment& experiment) {
  const std::string value = value_text(*find_field(key), experiment);
  return cat(key, " is ", value == text_text("") ? "not given" : value);
}

// A key whose place another one takes is left out, because a file may not give both.
std::string to_yaml(const Experiment& experiment) {
  return yaml_of(experiment, [&](const Field& field) { return replacement_of(field, experiment) == nullptr; });
}

std::string effective_yaml(const Experiment& experiment, std::string_view data) {
  const auto counts = [&](const Field& field) { return has_effect(field, experiment) && has_effect_on(field, data); };
  const auto left_out = std::ssize(schema()) - std::ranges::count_if(schema(), counts);
  const std::string yaml = yaml_of(experiment, counts);
  return left_out == 0 ? yaml : cat(yaml, "# ", left_out, " more keys have no effect here; --all prints them\n");
}

std::string schema_markdown() {
  std::string out =
      "# The experiment file\n\n"
      "To describe an experiment, write a YAML file with the keys on this page. Keys that are not given take\n"
      "their default. `bin/ringtrain plan FILE --ranks N` checks everything without training.\n\n"
      "After the file, `key.path=value` overrides a key. The last value wins. A list is written\n"
      "`learning_rate.milestones=[30,60,80]`. `optimizer.momentum=null` takes a key back to its default, as if\n"
      "the file did not give it. Required keys have no default. The keys decide the statistics of the\n"
      "experiment. The number of ranks only decides how fast it runs.\n\n"
      "The reader is strict. An unknown key, a wrong type, a value out of range, or two keys that contradict\n"
      "each other end the program. One message then names file, line and column. Integers are plain digits\n"
      "(`4096`, not `4e3` or `4_096`), numbers are finite, and switches are `true` or `false`.\n\n"
      "Some keys have an effect only with another key. Their description says so (\"Only with\"). Without that\n"
      "key they must keep their default value.\n\n"
      "This page is generated from `src/config/schema.cpp`; a test fails when it is stale.\n";
  std::string_view section = "-";
  for (const Field& field : schema()) {
    if (section_of(field.key) != section) {
      section = section_of(field.key);
      out += section.empty() ? "\n" : cat("\n## ", section, "\n\n");
      for (const SectionText& entry : section_texts)
        if (entry.name == section) out += cat(entry.text, "\n\n");
      out += "| key | type | unit | default | allowed | meaning |\n|---|---|---|---|---|---|\n";
    }
    const std::string allowed = field.words_.size() == 1 ? cat("only ", field.words_[0]) : expected(field);
    out += cat("| `", field.key, "` | ", type_text(field), " | ", field.unit_, " | ");
    out += field.required_ ? "required" : cat("`", value_text(field, Experiment()), "`");
    out += cat(" | ", allowed, " | ");
    for (const char letter : field.meaning_)
      out += letter == '<' ? "&lt;" : letter == '|' ? "\\|" : std::string(1, letter);
    if (!field.only_with_.empty())
      out += cat(" Only with `", field.only_with_, "` ", join(field.only_words_, " or "), ".");
    out += " |\n";
  }
  return out;
}

}  // namespace ringtrain
