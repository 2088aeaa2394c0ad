#include "backend/cuda/device/plan_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/system_limits.h"
#include "base/text.h"

namespace ringtrain::cuda {

namespace {

constexpr int answer_limit_seconds = 300;
constexpr double seconds_to_first_line = 5;

}  // namespace

std::string stand_in_driver_path() {
  return (std::filesystem::path(own_executable()).parent_path() / "libcuda-stand-in.so").string();
}

PlanProcess::PlanProcess(std::string name, std::string description)
    : name_(std::move(name)), description_(std::move(description)) {}

PlanProcess::~PlanProcess() {
  stop();
}

void PlanProcess::start() {
  int in[2], out[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || pipe2(out, O_CLOEXEC) != 0)
    throw Error(cat("cannot create a pipe to the planner process: ", std::strerror(errno)));
  const std::string executable = own_executable();
  const char* arguments[] = {executable.c_str(), planner_command, nullptr};
  child_ = fork();
  if (child_ < 0) throw_not_started("the process that makes cuDNN's plans");
  if (child_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execv(executable.c_str(), const_cast<char* const*>(arguments));
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_child_ = in[1];
  from_child_ = out[0];
  buffer_.clear();
  const std::optional<std::string> hello = write(description_ + "\n") ? read_line() : std::nullopt;
  if (hello && hello->rfind("ready ", 0) == 0) {
    version_ = hello->substr(6);
    return;
  }
  if (!hello) throw Error(cat("the planner ", executable, " ", planner_command, " ", end_of_child()));
  const std::vector<std::string> parts = split(*hello, '\t');
  stop();
  throw Error(cat("plans for ", name_, " cannot be made: ", parts.size() > 1 ? parts[1] : *hello),
              parts.size() > 2 ? parts[2] : "");
}

void PlanProcess::stop() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  end_of_child();
}

std::string PlanProcess::end_of_child() {
  close(to_child_);
  close(from_child_);
  int status = 0;
  waitpid(child_, &status, 0);
  child_ = -1;
  if (WIFSIGNALED(status)) return cat("crashed: signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return cat("ended with code ", WEXITSTATUS(status));
}

std::optional<std::string> PlanProcess::read_line() {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!receive()) return std::nullopt;
  }
}

std::optional<std::string> PlanProcess::read_bytes(std::size_t count) {
  while (buffer_.size() < count)
    if (!receive()) return std::nullopt;
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return bytes;
}

bool PlanProcess::receive() {
  for (;;) {
    pollfd ready = {from_child_, POLLIN, 0};
    const int count = poll(&ready, 1, answer_limit_seconds * 1000);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) {
      stop();
      throw Error(cat("cuDNN gave no answer about a plan within ", answer_limit_seconds, " s"),
                  "Is this machine busy with something else? Try again.");
    }
    char text[65536];
    const ssize_t bytes = read(from_child_, text, sizeof text);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    buffer_.append(text, static_cast<std::size_t>(bytes));
    return true;
  }
}

bool PlanProcess::write(const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    // The flag prevents the signal that would end this process when the child has ended.
    const ssize_t written = send(to_child_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<std::size_t>(written);
  }
  return true;
}

std::optional<std::string> PlanProcess::ask(const std::string& verb, std::size_t number, const DnnOperation& operation,
                                            const std::string& given) {
  if (child_ < 0) start();
  if (!write(cat(verb, " ", number, " ", operation.key(), "\n") + given)) return std::nullopt;
  std::optional<std::string> answer = read_line();
  if (answer && answer->rfind("error\t", 0) == 0) throw Error(answer->substr(6));
  return answer;
}

const std::string& PlanProcess::cudnn_version() {
  if (version_.empty()) start();
  return version_;
}

// Tells the user how many operations are planned. Writes to standard error, because `ringtrain plan` prints the plan on
// standard output. The number of all operations is not known, because the answers decide which others are asked for.
// The lines come 5, 10, 20, 40 ... seconds after the first answer.
void PlanProcess::tell_progress() {
  const double now = now_seconds();
  if (answers_++ == 0) {
    began_at_ = now;
    next_line_ = seconds_to_first_line;
  }
  if (now - began_at_ < next_line_) return;
  next_line_ *= 2;
  std::fprintf(stderr, "cuDNN has planned %d operations for %s in %.0f s; the next start finds them in a file\n",
               answers_, name_.c_str(), now - began_at_);
}

PlanAnswer PlanProcess::answer_to(const std::string& verb, std::size_t number, const DnnOperation& operation,
                                  const std::string& given) {
  const std::optional<std::string> line = ask(verb, number, operation, given);
  tell_progress();
  if (line) {
    PlanAnswer answer = parse_answer(line->substr(line->find('\t') + 1), '\t');
    if (std::optional<std::string> bytes = read_bytes(std::stoul(*line))) {
      answer.bytes = std::move(*bytes);
      return answer;
    }
  }
  return {.why = cat("cuDNN ", end_of_child())};
}

std::uint64_t PlanProcess::hash(const DnnOperation& operation) {
  const std::optional<std::string> line = ask("hash", 0, operation, "");
  if (!line) throw Error(cat("the planner ", end_of_child(), " at '", operation.key(), "'"));
  return std::strtoull(line->c_str(), nullptr, 10);
}

PlanCache::PlanCache(std::string file, const std::string& description)
    : file_(std::move(file)), device_(cat(std::hex, fnv1a(description))) {
  std::ifstream in(file_);
  for (std::string line; std::getline(in, line);) {
    std::size_t name_end = 0;  // the answer follows four columns
    for (int column = 0; column < 4 && name_end != std::string::npos; ++column)
      name_end = line.find(',', column == 0 ? 0 : name_end + 1);
    if (name_end == std::string::npos) continue;
    try {
      answers_[line.substr(0, name_end)] = parse_answer(line.substr(name_end + 1), ',');
    } catch (const Error&) {  // the line has the columns' names, or a full disk cut it short
    }
  }
}

std::string PlanCache::name(const std::string& version, std::uint64_t graph, const std::string& key) const {
  return cat(version, ",", device_, ",", std::hex, graph, ",", key);
}

const PlanAnswer* PlanCache::find(const std::string& version, std::uint64_t graph, const std::string& key) const {
  const auto found = answers_.find(name(version, graph, key));
  return found == answers_.end() ? nullptr : &found->second;
}

void PlanCache::add(const std::string& version, std::uint64_t graph, const std::string& key, const PlanAnswer& answer) {
  const std::string row = to_line(answer, ',');
  answers_[name(version, graph, key)] = parse_answer(row, ',');
  if (file_.empty()) return;
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::path(file_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  const int out = open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (out < 0) return;  // without a cache the program is only slower
  std::string line = lseek(out, 0, SEEK_END) == 0 ? cat(plan_cache_header, "\n") : "";
  line += cat(name(version, graph, key), ",", row, "\n");
  // One call of write() adds the whole line, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t written = write(out, line.data(), line.size());
  close(out);
}

}  // namespace ringtrain::cuda
