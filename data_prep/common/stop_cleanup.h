// Removes temporary files and locks when a signal stops the program: SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1 and
// SIGUSR2, which launchers and Slurm send.
#pragma once

#include <string>

namespace ringtrain {

// After this call, such a signal removes the files of remove_if_stopped(), prints one line, and ends the process with
// the exit code 128 + signal. A signal that is ignored (nohup) stays ignored. Call it first in main().
void clean_up_when_stopped();

// A file that is going to be made, or a folder, which is removed if it is empty. May be called from any thread. After a
// signal, it does not return, so that no file appears after the others have been removed.
void remove_if_stopped(const std::string& path);
// The file is gone, or is to stay.
void keep_if_stopped(const std::string& path);

// The line is printed by rank 0 alone.
void leave_stop_message_to_first();

}  // namespace ringtrain
