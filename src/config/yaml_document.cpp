#include "config/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "config/yaml_mistakes.h"

namespace ringtrain {
namespace {

constexpr std::size_t file_limit_bytes = 1 << 20;  // a larger file is a data file that was given by mistake

// Remembers where the last document started and ignores its content.
struct DocumentStart : YAML::EventHandler {
  YAML::Mark start;
  void OnDocumentStart(const YAML::Mark& mark) override { start = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

std::string place(const std::string& path, int line, int column) {
  return cat(path, ":", std::max(line, 0) + 1, ":", std::max(column, 0) + 1, ": ");
}

std::string with_article(const std::string& kind) {
  return (kind == "experiment" ? "an " : "a ") + kind;
}

}  // namespace

std::string yaml_place(const std::string& path, const YAML::Mark& mark) {
  return place(path, mark.line, mark.column);
}

std::string read_yaml_text(const std::string& path, const std::string& kind) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(cat(path, ":1:1: cannot be opened, expected ", with_article(kind), " file"),
                "configs/ holds examples.");
  std::string yaml(file_limit_bytes + 1, '\0');
  file.read(yaml.data(), static_cast<std::streamsize>(yaml.size()));
  if (file.bad()) throw Error(cat(path, ":1:1: cannot be read, expected ", with_article(kind), " file"));
  yaml.resize(static_cast<std::size_t>(file.gcount()));
  if (yaml.size() > file_limit_bytes)
    throw Error(cat(path, ":1:1: more than 1 MiB, expected ", with_article(kind), " file"));
  return yaml;
}

YAML::Node load_yaml_document(const std::string& yaml, const std::string& path, const std::string& kind) {
  YAML::Node document;
  DocumentStart last;
  bool more = false;
  try {
    document = YAML::Load(yaml);
    // YAML::LoadAll (version 0.7) is not used, because it never ends if text comes before a map.
    std::istringstream stream(yaml);
    YAML::Parser parser(stream);
    more = parser.HandleNextDocument(last) && parser.HandleNextDocument(last);
  } catch (const YAML::Exception& error) {
    const auto mistake = find_yaml_mistake(yaml, error.mark.line, error.mark.column);
    throw Error(cat(mistake ? place(path, mistake->line, mistake->column) : yaml_place(path, error.mark),
                    "not valid YAML: ", mistake ? mistake->what : error.msg));
  }
  if (more)
    throw Error(cat(yaml_place(path, last.start), "more text after the ", kind, "'s end, expected one YAML document"));
  if (!document.IsDefined() || document.IsNull())
    throw Error(cat(path, ":1:1: the file is empty, expected ", with_article(kind)), "configs/ holds examples.");
  return document;
}

}  // namespace ringtrain
