// The board is an MPI shared-memory window with one entry per rank of the node. MPI removes its file as soon as all
// ranks have attached, so kill -9 leaves nothing behind.
#include "cluster/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine_share.h"
#include "base/text.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"
#include "cluster/session.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr double kDeadSeconds = 3;        // after a rank's death, a working launcher ends the job sooner than this
constexpr double kOtherNodesSeconds = 2;  // time for other nodes to print tables before the abort

// One cache line per rank. Its owner writes it, and all ranks read it.
struct alignas(64) Entry {
  std::atomic<std::int64_t> step_and_phase;  // (step << 8) | phase
  std::atomic<double> changed;               // time by now_seconds()
  std::atomic<std::int32_t> reported;        // in entry 0 only: 1 if a rank of the node prints the table
  std::int32_t rank, pid;
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// Returns the seconds after which a thread looks again whether a limit has passed.
double tick_of(double limit) {
  return std::clamp(limit / 20, 0.01, 0.5);
}

// Returns the state letter of proc(5), or 0 if there is no such process (or if it is in another pid namespace).
char process_state(int pid) {
  std::ifstream file(cat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t at = line.rfind(") ");  // the command's name may hold anything
  return at == std::string::npos || at + 2 >= line.size() ? '\0' : line[at + 2];
}

bool is_dead(char state) {
  return state == '\0' || state == 'Z' || state == 'X';
}

bool is_stopped(char state) {
  return state == 'T' || state == 't';
}

const char* state_name(char state) {
  if (state == '\0') return "GONE";
  if (is_dead(state)) return "DEAD";
  if (is_stopped(state)) return "STOPPED";
  if (state == 'D') return "in disk i/o";
  return state == 'R' ? "running" : "sleeping";
}

}  // namespace

const char* phase_name(Phase phase) {
  static constexpr const char* names[] = {"start",         "input",  "forward",    "backward",   "stage wait",
                                          "communication", "update", "evaluation", "checkpoint", "finished"};
  static_assert(std::size(names) == static_cast<std::size_t>(Phase::finished) + 1);
  return phase <= Phase::finished ? names[static_cast<std::size_t>(phase)] : "?";
}

struct Watchdog::State {
  State(const RankGroup& watched, double timeout_seconds)
      : group(watched), timeout(timeout_seconds), node(part_on_node(group.state().comm)) {}
  const RankGroup group;
  const double timeout;
  OwnComm node;
  MPI_Win window = MPI_WIN_NULL;
  bool several_nodes = false;
  std::vector<Entry*> board;
  std::vector<char> visible;  // by entry: whether its process is visible in our /proc
  Entry* own = nullptr;
  std::size_t next = 0;  // entry of the next rank on the node; the first one follows the last
  std::atomic<std::uint64_t> beats{0};
  std::uint64_t last_beats = 0;
  double idle = 0, dead = 0;  // seconds without a beat; since the death of the next rank
  Ticker ticker;              // the last member, because its thread uses the others

  void write(std::int64_t step, Phase phase) {
    own->step_and_phase.store((step << 8) | static_cast<std::int64_t>(phase), std::memory_order_relaxed);
    own->changed.store(now_seconds(), std::memory_order_relaxed);
  }
  void beat() { beats.fetch_add(1, std::memory_order_relaxed); }
  // Called at every tick of the watchdog's thread.
  void watch(double passed) {
    const std::uint64_t beats_now = beats.load(std::memory_order_relaxed);
    idle = beats_now == last_beats ? idle + passed : 0;
    last_beats = beats_now;
    const Entry* lost = dead_peer();
    dead = lost != nullptr ? dead + passed : 0;
    if (dead > kDeadSeconds) end_job(cat("rank ", lost->rank, " (pid ", lost->pid, ") has died"));
    if (idle > timeout) end_job(cat("no step was finished for ", timeout, " s"));
  }
  // Every rank checks only the next rank of its node, so that a tick costs one small read from /proc.
  const Entry* dead_peer() const {
    const Entry* peer = board[next];
    const auto phase = static_cast<Phase>(peer->step_and_phase.load(std::memory_order_relaxed) & 0xff);
    return visible[next] && phase != Phase::finished && is_dead(process_state(peer->pid)) ? peer : nullptr;
  }
  // Prints the table of this node. Returns false if another rank prints it.
  bool report(const std::string& reason) {
    if (board[0]->reported.exchange(1) != 0) return false;
    const double now = now_seconds();
    std::string text = cat("\nringtrain: ", reason, " (seen by ", rank_label(), "); ending the job. On this node:\n");
    char line[200];
    std::snprintf(line, sizeof line, "%6s %9s %10s  %-14s %12s  %s\n", "rank", "pid", "step", "phase", "unchanged",
                  "process");
    text += line;
    for (std::size_t i = 0; i < board.size(); ++i) {
      const std::int64_t word = board[i]->step_and_phase.load(std::memory_order_relaxed);
      const char state = process_state(board[i]->pid);
      const bool suspect = visible[i] && (is_dead(state) || is_stopped(state));
      std::snprintf(line, sizeof line, "%6d %9d %10lld  %-14s %10.1f s  %s%s\n", board[i]->rank, board[i]->pid,
                    static_cast<long long>(word >> 8), phase_name(static_cast<Phase>(word & 0xff)),
                    now - board[i]->changed.load(std::memory_order_relaxed),
                    visible[i] ? state_name(state) : "not visible from here", suspect ? "  <-- look here" : "");
      text += line;
    }
    text += "Ranks in \"communication\" and \"stage wait\" wait for the late rank.\n";
    for (std::size_t written = 0; written < text.size();) {  // one write, so that ranks' lines do not mix
      const ssize_t count = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
      if (count <= 0) break;
      written += static_cast<std::size_t>(count);
    }
    return true;
  }
  [[noreturn]] void end_job(const std::string& reason) {
    if (!report(reason))
      std::this_thread::sleep_for(std::chrono::seconds(5));  // gives the rank that prints time to abort first
    else if (several_nodes)
      std::this_thread::sleep_for(std::chrono::duration<double>(kOtherNodesSeconds));
    abort_job(exit_hung);
  }
};

Watchdog::Watchdog(const RankGroup& group, double timeout_seconds) {
  std::optional<StartGuard> guard;
  if (timeout_seconds > 0) guard.emplace("the ranks did not meet", timeout_seconds);
  group.meet();
  state_ = std::make_unique<State>(group, timeout_seconds);
  State& s = *state_;
  const int node_rank = group.node_rank(), node_size = group.node_size();
  s.several_nodes = node_size < group.size();

  void* memory = nullptr;
  const MPI_Aint bytes = 2 * sizeof(Entry);  // room to round up, because MPI promises no alignment
  check_mpi(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, s.node, &memory, &s.window), "MPI_Win_allocate_shared");
  for (int r = 0; r < node_size; ++r) {
    MPI_Aint its_bytes = 0;
    int unit = 1;
    void* base = nullptr;
    check_mpi(MPI_Win_shared_query(s.window, r, &its_bytes, &unit, &base), "MPI_Win_shared_query");
    std::size_t room = static_cast<std::size_t>(its_bytes);
    s.board.push_back(static_cast<Entry*>(std::align(alignof(Entry), sizeof(Entry), base, room)));
  }
  s.own = new (s.board[static_cast<std::size_t>(node_rank)]) Entry{};
  s.next = static_cast<std::size_t>((node_rank + 1) % node_size);
  int rank_of_job = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_of_job);
  s.own->rank = rank_of_job;
  s.own->pid = static_cast<std::int32_t>(getpid());
  s.write(0, Phase::start);
  MPI_Barrier(s.node);
  for (const Entry* entry : s.board) s.visible.push_back(!is_dead(process_state(entry->pid)));
  if (timeout_seconds > 0)
    s.ticker.start("watches for ranks that hang", tick_of(timeout_seconds), [&s](double passed) { s.watch(passed); });
}

Watchdog::~Watchdog() {
  State& s = *state_;
  const bool together = std::uncaught_exceptions() == 0;  // whether all ranks come here
  s.beat();
  s.write(s.own->step_and_phase.load(std::memory_order_relaxed) >> 8, Phase::finished);
  if (together) {
    // The watchdog still runs: a rank that never comes here must not let the others wait for ever.
    int done = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(s.group.state().comm, &request);
    for (Waiter waiter; MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;) waiter.pause();
  }
  s.ticker.stop();
  if (together) MPI_Win_free(&s.window);  // waits for all ranks
}

void Watchdog::enter(std::int64_t step, Phase phase) {
  state_->write(step, phase);
}

void Watchdog::alive() {
  state_->own->changed.store(now_seconds(), std::memory_order_relaxed);
  state_->beat();
}

void Watchdog::step_finished(std::int64_t step) {
  state_->write(step, Phase::update);
  state_->beat();
}

namespace {

constexpr double kStartSeconds = 600;
constexpr double kApart = 1;  // seconds that rank r + 1 waits longer than rank r, so that one rank prints first
constexpr int kRanksApart = 10;

double start_seconds() {
  const char* text = std::getenv("RINGTRAIN_START_SECONDS");
  if (text == nullptr || *text == '\0') return kStartSeconds;
  double seconds = 0;
  if (!read_number(text, seconds) || !(seconds > 0 && seconds <= 1e9))
    throw Error(cat("RINGTRAIN_START_SECONDS is '", text, "', expected seconds above 0"), "leave it unset for 600");
  return seconds;
}

}  // namespace

struct StartGuard::State {
  std::string what;
  double limit = 0;
  double waited = -kApart * std::min(launched_rank(), kRanksApart);
  Ticker ticker;  // the last member, because its thread uses the others

  void watch(double passed) {
    waited += passed;
    if (waited <= limit) return;
    const std::string text = cat(
        "\nringtrain: ", what, " within ", limit, " s (seen by rank ", launched_rank(), " on ", host_name(), ", pid ",
        ::getpid(), "); ending the job. A process of the job hangs, was stopped, or did not start: look at the ",
        "processes on the nodes. If the start is only slow, raise RINGTRAIN_START_SECONDS (start of MPI) or ",
        "communication.timeout_seconds (all later steps of the start)\n");
    std::fputs(text.c_str(), stderr);
    abort_job(exit_hung);
  }
};

StartGuard::StartGuard(std::string what, double seconds) {
  const double limit = seconds > 0 ? seconds : start_seconds();
  if (launched_tasks() <= 1) return;
  state_ = std::make_unique<State>();
  state_->what = std::move(what);
  state_->limit = limit;
  state_->ticker.start("watches the start of MPI", tick_of(limit),
                       [state = state_.get()](double passed) { state->watch(passed); });
}

StartGuard::~StartGuard() = default;

}  // namespace ringtrain
