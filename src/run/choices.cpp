#include "run/choices.h"

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "run/folder.h"

namespace ringtrain {

namespace {

std::string file_of(const std::string& run_dir) {
  return run_dir + "/choices";
}

// The file has the head, a line with the hash of head and plans, and the plans.
std::string text_of(const RunChoices& choices) {
  const std::string head = choices.head();
  return cat(head, '\n', fnv1a(head + choices.plans), '\n', choices.plans);
}

RunChoices of_text(const std::string& text) {
  const std::size_t head_end = text.find('\n'), hash_end = text.find('\n', head_end + 1);
  if (head_end == std::string::npos || hash_end == std::string::npos) throw Error("it is incomplete");
  const std::string head = text.substr(0, head_end), hash = text.substr(head_end + 1, hash_end - head_end - 1);
  std::string plans = text.substr(hash_end + 1);
  if (hash != cat(fnv1a(head + plans))) throw Error("its hash is not that of its contents");
  RunChoices choices = RunChoices::of_head(head);
  choices.plans = std::move(plans);
  return choices;
}

}  // namespace

std::string RunChoices::head() const {
  return Json{{"device", device}, {"cudnn", cudnn}, {"communication", communication}}.dump();
}

RunChoices RunChoices::of_head(const std::string& line) {
  RunChoices choices;
  try {
    const auto json = parse_json(line);
    if (!json.is_object()) throw Error("its first line is no JSON object");
    json.at("device").get_to(choices.device);
    json.at("cudnn").get_to(choices.cudnn);
    json.at("communication").get_to(choices.communication);
  } catch (const Json::exception&) {
    throw Error("its first line does not hold the texts 'device' and 'cudnn' and the object 'communication'");
  }
  return choices;
}

RunChoices read_choices(const std::string& run_dir) {
  const std::string path = file_of(run_dir);
  if (!std::filesystem::exists(path)) return {};
  try {
    return of_text(file_text(path));
  } catch (const Error& e) {
    log_warning(path, ": ", e.what(), "; new cuDNN plans are searched, and the results may differ by rounding");
    return {};
  }
}

void write_choices(const std::string& run_dir, const RunChoices& choices) {
  const std::string path = file_of(run_dir), text = text_of(choices);
  if (text != file_text(path)) write_file_atomically(path, text);
}

RunChoices share_choices(RunChoices of_rank_0, Communicator& communicator) {
  const std::string head = broadcast_string(communicator, of_rank_0.head(), 0);
  return communicator.rank() == 0 ? std::move(of_rank_0) : RunChoices::of_head(head);
}

}  // namespace ringtrain
