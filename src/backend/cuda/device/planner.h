// The child process that plans for a described GPU: cuDNN with a stand-in for NVIDIA's driver, which only this process
// ever opens. It reads one operation's key a line and answers in one line; when cuDNN crashes on one, the process that
// asked starts another.
#pragma once

namespace ringtrain::cuda {

// Argument of the executable that makes it this process.
inline constexpr const char* planner_command = "cudnn-planner";
// Serves standard input and output until the end of the input. The first line is the device's description, answered by
// "ready VERSION"; then "plan KEY" and "reload KEY" (the plan as it comes back from its serialised form,
// written and loaded twice) are answered by to_line() with tabs, "hash KEY" by graph_hash(), each also by
// "error\tWHAT\tHINT".
int run_planner();

}  // namespace ringtrain::cuda
