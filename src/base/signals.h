// Requests from outside to stop with a checkpoint. The first signal only sets a flag: SIGTERM (preemption, time limit),
// SIGUSR1 (Slurm's --signal, and forwarded by mpirun), SIGUSR2, SIGINT or SIGHUP. The training loop reads the flag once
// per step.
#pragma once

#include <string>

namespace ringtrain {

// Catches SIGTERM, SIGUSR1, SIGUSR2 and SIGINT (Ctrl-C), and SIGHUP too unless it is ignored (nohup). SIGPIPE is
// ignored. Throws Error if the system refuses.
//
// Call this function before MPI_Init and before any other thread is created. A signal during start-up must not kill the
// rank. A signal must also never interrupt a thread that computes: oneDNN's compiled matrix products point the stack
// pointer into the heap (oneDNN's issue 4845), where the frame of a signal handler would overwrite data. So the signals
// are blocked in all threads, and one extra thread waits for them.
//
// After the first signal, further signals change nothing, because Slurm repeats SIGTERM, and sends SIGUSR1 and then
// SIGTERM. There are two exceptions: a further SIGINT or SIGUSR2 kills the process as usual, until hold_signals() is
// called. (mpirun forwards SIGUSR2, but not Ctrl-C.) Signals within a second of the first one do not count, because
// launchers send the same signal in several ways. A user who does not want to wait can send SIGKILL.
void catch_signals();

// Ignores SIGXFSZ, which would otherwise kill the process without a message when a file becomes larger than the limit
// (ulimit -f). The write then fails with EFBIG, much as on a full disk. Shared memory counts as a file. Call this
// function first in main().
void report_file_limits();

// After this call only SIGKILL can end this process early, because the checkpoint of the first signal is being written.
void hold_signals();

// Acts as if this signal had arrived, unless one has already arrived. A process calls this function if it learns of a
// signal in another way.
void request_stop(int signal_number);

// Returns the first signal received (SIGTERM, SIGUSR1, SIGUSR2, SIGINT or SIGHUP), 0 if none.
int requested_signal();
// Returns the seconds since the first signal; 0 if there was none.
double seconds_since_signal();

// Returns the name of a signal: "SIGTERM", or "signal 30" for one that rarely ends a run.
std::string signal_name(int signal_number);

}  // namespace ringtrain
