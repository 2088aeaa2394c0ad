#include "data_prep/images/class_list.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/common/input_file.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {
namespace {

constexpr const char* white = " \t\r\f\v";
constexpr std::int32_t most_classes = 1 << 20, few_classes = 10000;

// Calls action(line, number) for each line that is not blank. White space around the line is removed.
template <class Action>
void for_each_line(const std::string& path, const Action& action) {
  std::string text = read_text_file(path);
  check_is_utf8_text(std::string_view(text).substr(0, 1 << 20), path, {});
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.find('\n') == std::string::npos) std::ranges::replace(text, '\r', '\n');  // the line ends of old Macs
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find('\0') != std::string::npos)
      throw Error(cat(path, ", line ", number, ": holds a zero byte; this is not a text file"));
    line.erase(line.find_last_not_of(white) + 1);
    line.erase(0, line.find_first_not_of(white));
    if (!line.empty()) action(line, number);
  }
}

std::optional<std::int32_t> as_label(const std::string& text) {
  std::int32_t label = 0;
  return read_number(text, label) ? std::optional(label) : std::nullopt;
}

// Throws Error for a whole number that no label can be, because it has too many digits.
void check_digits(const ListedImage& entry, const std::string& list, std::int32_t highest) {
  const std::string digits = entry.label.substr(entry.label.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos || as_label(entry.label)) return;
  throw Error(cat(list, ", line ", entry.line, ": the label ", entry.label, " is outside 0 to ", highest),
              "labels count from 0; --class-list names the classes");
}

// Returns a path in its shortest form, so that two spellings of one path are the same text. Throws Error if it leads
// out of INPUT.
std::string path_below_input(const ListedImage& entry, const std::string& list, const std::string& hint) {
  const auto refuse = [&](const char* what) {
    throw Error(cat(list, ", line ", entry.line, ": ", shown(entry.path), what), hint);
  };
  std::vector<std::string> parts;
  for (std::string& part : split(entry.path, '/')) {
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(std::move(part));
    } else {
      if (parts.empty()) refuse(" lies outside INPUT");
      parts.pop_back();
    }
  }
  if (parts.empty()) refuse(" is no path of an image");
  return joined(parts, "/");
}

}  // namespace

void ClassList::add(const std::string& id, const std::string& name) {
  labels.emplace(id, static_cast<std::int32_t>(ids.size()));
  ids.push_back(id);
  names.push_back(name);
}

void expect_ids_in_order(const ClassList& classes, const std::string& path, std::int64_t first_label) {
  const std::int64_t end = first_label + std::ssize(classes.ids);
  std::vector<std::int64_t> labels;
  for (const std::string& id : classes.ids) {
    const std::optional<std::int32_t> label = as_label(id);
    if (!label || *label < first_label || *label >= end) return;  // ids that are not the labels
    labels.push_back(*label);
  }
  for (std::size_t k = 0; k < labels.size(); ++k) {
    const std::int64_t of_rows = first_label + static_cast<std::int64_t>(k);
    if (labels[k] != of_rows)
      throw Error(cat(path, ": class ", k + 1, " has the id ", shown(classes.ids[k]), ", but its rows have the label ",
                      of_rows),
                  "the first class has the lowest label: sort the lines by their ids");
  }
}

ClassList read_class_list(const std::string& path) {
  ClassList classes;
  bool all_have_commas = true;
  for_each_line(path, [&](const std::string& line, std::int64_t number) {
    if (classes.empty() && line.starts_with("# ")) return;  // a comment; later, # may be a class
    const std::size_t tab = line.find('\t'), gap = tab == std::string::npos ? line.find_first_of(white) : tab;
    std::string id = line.substr(0, gap);
    id.erase(id.find_last_not_of(white) + 1);
    const std::string name = gap == std::string::npos ? id : line.substr(line.find_first_not_of(white, gap));
    if (name != id && find_invalid_utf8(name) != std::string::npos)
      throw Error(cat(path, ", line ", number, ": the class's name is not valid UTF-8"),
                  cat("convert the file from its encoding. This is a guess, so look at the result: ",
                      iconv_command(likely_encoding(name), path, {})));
    if (classes.labels.contains(id)) {
      throw Error(cat(path, ", line ", number, ": the class ", shown(id), " occurs a second time"),
                  "each line is one class: its id, then its name");
    }
    const std::size_t comma = id.find_first_of(",;");
    all_have_commas = all_have_commas && comma != std::string::npos && comma + 1 < id.size();
    classes.add(id, name);
  });
  if (classes.ids.size() > 1 && all_have_commas)
    throw Error(
        cat(path, ": looks like a table, such as ", shown(classes.ids[0]), ", expected an id, a blank and a name"),
        "write \"id name\" lines, without a header");
  if (classes.empty()) throw Error(cat(path, ": holds no classes"), "each line is one class: its id, then its name");
  if (classes.ids.size() > most_classes)
    throw Error(cat(path, ": ", classes.ids.size(), " classes, expected at most ", most_classes));
  return classes;
}

std::int64_t most_numbered_classes(std::int64_t images) {
  return std::min<std::int64_t>(most_classes, few_classes + 16 * images);
}

ClassList numbered_classes(std::int64_t count) {
  ClassList classes;
  for (std::int64_t label = 0; label < count; ++label) classes.add(std::to_string(label), std::to_string(label));
  return classes;
}

std::vector<ListedImage> read_image_list(const std::string& path) {
  std::vector<ListedImage> entries;
  for_each_line(path, [&](const std::string& line, std::int64_t number) {
    std::size_t gap = line.rfind('\t');  // with tabs, labels (and paths) may hold blanks
    if (gap == std::string::npos) gap = line.find_last_of(white);
    if (const auto tabs = std::ranges::count(line, '\t'); tabs > 1)
      throw Error(cat(path, ", line ", number, ": has ", tabs + 1, " columns, expected a path and a label"),
                  cat("write these two columns to a file of their own, for example with ",
                      shell_command({"cut", "-f1,2", path})));
    const std::string hint = "each line is a path below INPUT, white space, and a label or class id";
    if (gap == std::string::npos) throw Error(cat(path, ", line ", number, ": ", shown(line), " has no label"), hint);
    ListedImage entry{line.substr(0, gap), line.substr(gap + 1), number};
    entry.path.erase(entry.path.find_last_not_of(white) + 1);
    entry.path = path_below_input(entry, path, hint);
    entries.push_back(std::move(entry));
  });
  if (entries.empty()) throw Error(cat(path, ": lists no images"));
  std::unordered_map<std::string, std::int64_t> seen;
  for (const ListedImage& entry : entries) {
    const auto [first, is_new] = seen.emplace(entry.path, entry.line);
    if (is_new) continue;
    throw Error(cat(path, ", line ", entry.line, ": ", shown(entry.path), " is listed already in line ", first->second),
                "list each image once");
  }
  return entries;
}

std::vector<std::int32_t> labels_of(const std::vector<ListedImage>& entries, const std::string& path,
                                    ClassList& classes) {
  std::vector<std::int32_t> labels;
  if (classes.empty()) {
    std::set<std::string> ids;
    std::int32_t highest = -1;
    bool all_numbers = true;
    for (const ListedImage& entry : entries) {
      const std::optional<std::int32_t> label = as_label(entry.label);
      // One typing error among numbers would turn all labels into ids, which are numbered in another order.
      if (label.has_value() != as_label(entries[0].label).has_value()) {
        for (const ListedImage& either : {entries[0], entry}) check_digits(either, path, most_classes - 1);
        throw Error(cat(path, ", line ", entry.line, ": the label ", shown(entry.label), " is ", label ? "a" : "not a",
                        " number, unlike that of line ", entries[0].line, ", ", shown(entries[0].label)),
                    "labels are all numbers, or all class ids; --class-list names the classes");
      }
      const std::size_t point = entry.label.find('.');
      if (!label && point != std::string::npos && as_label(entry.label.substr(0, point)) &&
          entry.label.find_first_not_of('0', point + 1) == std::string::npos)
        throw Error(cat(path, ", line ", entry.line, ": the label ", shown(entry.label), " has a decimal point"),
                    "write labels as whole numbers, for example with astype(int)");
      if (label.value_or(0) < 0)
        throw Error(cat(path, ", line ", entry.line, ": the label is ", *label), "labels count from 0");
      all_numbers = label.has_value();
      highest = std::max(highest, label.value_or(0));
      ids.insert(entry.label);
    }
    if (all_numbers) {
      const auto images = static_cast<std::int64_t>(entries.size());
      if (const std::int64_t most = most_numbered_classes(images); highest >= most)
        throw Error(
            cat(path, ": the label ", highest, " is too large for ", images, " images, expected less than ", most),
            "labels count from 0; --class-list names the classes");
      classes = numbered_classes(highest + 1);
    } else {
      for (const std::string& id : ids) classes.add(id, id);
    }
  }
  const auto count = static_cast<std::int32_t>(classes.ids.size());
  for (const ListedImage& entry : entries) {
    const auto known = classes.labels.find(entry.label);
    const std::optional<std::int32_t> label =
        known != classes.labels.end() ? std::optional(known->second) : as_label(entry.label);
    if (!label) {
      check_digits(entry, path, count - 1);
      throw Error(cat(path, ", line ", entry.line, ": ", shown(entry.label), " is neither a class id nor a number"),
                  "--class-list names the classes");
    }
    if (*label < 0 || *label >= count) {
      throw Error(cat(path, ", line ", entry.line, ": the label ", *label, " is outside 0 to ", count - 1),
                  "labels count from 0");
    }
    labels.push_back(*label);
  }
  return labels;
}

}  // namespace ringtrain
