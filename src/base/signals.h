// Requests from outside to stop with a checkpoint: SIGTERM (preemption, time limit), SIGUSR1 (Slurm's --signal, also
// what mpirun forwards) and SIGINT only set a flag, which the training loop reads once a step.
#pragma once

#include <string>

namespace ringtrain {

// SIGHUP too, unless it is ignored (nohup); SIGPIPE is ignored. Call it before MPI_Init and before any other thread is
// made: a signal that comes during start-up must not kill the rank, and none may ever interrupt a thread that computes.
// oneDNN's compiled products put the stack pointer into the heap (its issue 4845), where a handler's frame would
// destroy what lies below; so the signals are blocked in all threads, and one of their own waits for them. What comes
// after the first changes nothing: Slurm repeats SIGTERM, and sends SIGUSR1 and then SIGTERM, and whoever does not want
// to wait has SIGKILL. Only a second Ctrl-C (or SIGUSR2, which mpirun forwards, unlike Ctrl-C) kills as usual, until
// hold_signals(); repeats within a second do not count, since launchers send the same signal along several ways. Throws
// Error when the system refuses.
void catch_signals();

// From now on nothing but SIGKILL ends this process early: the checkpoint of the first signal is being written.
void hold_signals();

// As if this signal had come: for a process that hears of it on another way.
void request_stop(int signal_number);

// The first signal received (SIGTERM, SIGUSR1, SIGUSR2, SIGINT or SIGHUP), 0 if none.
int requested_signal();
// Since it came; 0 if none has.
double seconds_since_signal();

// "SIGTERM"; "signal 9" for one that is none of the above.
std::string signal_name(int signal_number);

}  // namespace ringtrain
