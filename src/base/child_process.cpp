#include "base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/system_limits.h"

namespace ringtrain {
namespace {

std::vector<std::string> changed_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) variables.emplace_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) variables.push_back(cat(name, "=", value));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Becomes the program, in the child process. Returns errno if it cannot. Between fork() and exec(), a process of
// several threads may only call functions that take no lock.
int become(char* const* words, char* const* environment, int output, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) return ECHILD;  // the parent has ended before the call above
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(output, STDOUT_FILENO) < 0 ||
      ::dup2(output, STDERR_FILENO) < 0)
    return errno;
  for (const int signal_number : {SIGPIPE, SIGXFSZ}) ::signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // catch_signals() has blocked some
  ::execvpe(words[0], words, environment);
  return errno;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& output,
                           const std::map<std::string, std::string>& environment) {
  const int log = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    const int reason = errno;
    throw Error(cat(output, ": cannot write: ", std::strerror(reason)), advice_for_writing(reason, output));
  }
  std::vector<std::string> arguments = words, variables = changed_environment(environment);
  const std::vector<char*> argument_list = pointers_to(arguments), variable_list = pointers_to(variables);
  int news[2] = {-1, -1};  // the child writes errno if it does not become the program
  const pid_t parent = ::getpid();
  int reason = ::pipe2(news, O_CLOEXEC) == 0 ? 0 : errno;
  if (reason == 0) {
    pid_ = ::fork();
    if (pid_ == 0) {
      const int failed = become(argument_list.data(), variable_list.data(), log, parent);
      [[maybe_unused]] const ssize_t told = ::write(news[1], &failed, sizeof failed);
      ::_exit(127);
    }
    if (pid_ < 0) reason = errno;
    ::close(news[1]);
    if (pid_ > 0) {
      while (::read(news[0], &reason, sizeof reason) < 0 && errno == EINTR) {
      }
      if (reason != 0) ::waitpid(pid_, nullptr, 0);
    }
    ::close(news[0]);
  }
  ::close(log);
  if (pid_ < 0 && reason == EAGAIN) throw_not_started(words[0]);
  if (reason == ENOENT) throw Error(cat(words[0], " was not found"), "put its folder into PATH");
  if (reason != 0) throw Error(cat("cannot start ", words[0], ": ", std::strerror(reason)));
}

ChildProcess::~ChildProcess() {
  if (ended()) return;
  send(SIGTERM);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> ChildProcess::ended() {
  int status = 0;
  if (!code_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

void ChildProcess::send(int signal_number) {
  if (!ended()) ::kill(pid_, signal_number);
}

std::optional<std::string> output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), got);
  ::pclose(pipe);
  return text;
}

bool can_start(const std::string& program) {
  const auto is_program = [](const std::string& path) {
    std::error_code ignored;
    return ::access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path, ignored);
  };
  if (program.find('/') != std::string::npos) return is_program(program);
  std::istringstream folders(environment_text("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (is_program((folder.empty() ? "." : folder) + "/" + program)) return true;
  return false;
}

std::string own_executable() {
  if (const char* named = std::getenv("RINGTRAIN_EXECUTABLE"); named != nullptr && *named != '\0') return named;
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace ringtrain
