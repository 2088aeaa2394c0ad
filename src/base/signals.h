// Requests from outside to stop with a checkpoint. SIGTERM (preemption, time limit), SIGUSR1 (Slurm's --signal, and
// forwarded by mpirun) and SIGINT only set a flag. The training loop reads the flag once per step.
#pragma once

#include <string>

namespace ringtrain {

// Catches these signals, and SIGHUP too unless it is ignored (nohup). SIGPIPE is ignored. Throws Error if the system
// refuses.
//
// Call it before MPI_Init and before any other thread is created. A signal during start-up must not kill the rank, and
// a signal must never interrupt a thread that computes: oneDNN's compiled products put the stack pointer into the heap
// (its issue 4845), where the frame of a signal handler would overwrite data. So the signals are blocked in all
// threads, and one extra thread waits for them.
//
// Later signals change nothing. Slurm repeats SIGTERM, and sends SIGUSR1 and then SIGTERM; a user who does not want to
// wait can send SIGKILL. The exception is a second Ctrl-C, or SIGUSR2, which mpirun forwards (it does not forward
// Ctrl-C). It kills the process as usual until hold_signals() is called. Repeats within a second do not count, because
// launchers send the same signal in several ways.
void catch_signals();

// A file that would grow beyond a limit (ulimit -f) is an error of the call, EFBIG, as on a full disk. Without this
// call SIGXFSZ would kill the process without a word. Shared memory counts as a file. Call it first in main().
void report_file_limits();

// After this call only SIGKILL can end this process early, because the checkpoint of the first signal is being written.
void hold_signals();

// Acts as if this signal had arrived. A process that learns of the signal in another way calls it.
void request_stop(int signal_number);

// Returns the first signal received (SIGTERM, SIGUSR1, SIGUSR2, SIGINT or SIGHUP), 0 if none.
int requested_signal();
// Returns the seconds since the first signal; 0 if there was none.
double seconds_since_signal();

// Returns the name of a signal: "SIGTERM", or "signal 9" for a signal that is not listed above.
std::string signal_name(int signal_number);

}  // namespace ringtrain
