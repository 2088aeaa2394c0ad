// Requests from outside to stop with a checkpoint: SIGTERM (preemption, time limit), SIGUSR1 (Slurm's --signal, also
// what mpirun forwards) and SIGINT only set a flag, which the training loop reads once a step.
#pragma once

namespace ringtrain {

// SIGHUP too, unless it is ignored (nohup); SIGPIPE is ignored. Call before MPI_Init: a signal that comes during
// start-up must not kill the rank. A second SIGINT or SIGTERM kills as usual; repeats within a second do not count,
// since launchers send the same signal along several ways.
void install_signal_handlers();

// The first signal received (SIGTERM, SIGUSR1, SIGINT or SIGHUP), 0 if none.
int requested_signal();

}  // namespace ringtrain
