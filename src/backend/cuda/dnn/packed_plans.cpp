#include "backend/cuda/dnn/packed_plans.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain::cuda {
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

// Writes one line for each plan, then the plan's bytes. The line has the key, the number of timed plans, the number of
// bytes and the answer, with tabs between them.
std::string pack(const PackedPlans& plans) {
  std::string text;
  for (const auto& [key, answer] : plans)
    text += cat(key, '\t', answer.timed, '\t', answer.bytes.size(), '\t', to_line(answer, '\t'), '\n') + answer.bytes;
  return text;
}

PackedPlans unpack(const std::string& text) {
  PackedPlans plans;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;) {
    const std::vector<std::string> parts = split(text.substr(at, end - at), '\t', 4);
    at = end + 1;
    int timed = 0;
    std::size_t bytes = 0;
    if (parts.size() != 4 || !read_number(parts[1], timed) || !read_number(parts[2], bytes) || bytes > text.size() - at)
      break;
    try {
      PlanAnswer answer = parse_answer(parts[3], '\t');
      answer.timed = timed;
      answer.bytes = text.substr(at, bytes);
      plans[parts[0]] = std::move(answer);
    } catch (const Error&) {
      break;
    }
    at += bytes;
  }
  return plans;
}

namespace {

const char* const before_version = "-cudnn-";

std::string file_name(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
  return text;
}

bool has_plans(const std::filesystem::path& folder) {
  std::error_code failed;
  const std::filesystem::directory_iterator files(folder, failed);
  return !failed && files != std::filesystem::directory_iterator();
}

}  // namespace

std::filesystem::path plan_folder(const std::string& cache, const std::string& gpu, const std::string& cudnn_version) {
  if (cache.empty()) return {};
  return std::filesystem::path(cache) / file_name(cat(gpu, before_version, cudnn_version));
}

std::filesystem::path plan_file(const std::filesystem::path& folder, std::uint64_t graph_hash) {
  return folder / cat(std::hex, graph_hash, ".plan");
}

std::string note_about_other_versions(const std::filesystem::path& folder) {
  if (folder.empty() || has_plans(folder)) return {};
  const std::string name = folder.filename().string(), stem = name.substr(0, name.rfind(before_version));
  std::string others;
  std::error_code failed;
  for (const auto& other : std::filesystem::directory_iterator(folder.parent_path(), failed)) {
    const std::string found = other.path().filename().string();
    if (found.rfind(stem + before_version, 0) == 0 && has_plans(other.path()))
      others += cat(others.empty() ? "" : " and ", found.substr(stem.size() + std::string(before_version).size()));
  }
  if (others.empty()) return {};
  return cat(folder.parent_path().string(), " keeps plans for cuDNN ", others, ", and this is cuDNN ",
             name.substr(stem.size() + std::string(before_version).size()), ": plans are built again");
}

}  // namespace ringtrain::cuda
