// This is the child process that plans for a described GPU. It runs cuDNN with a stand-in for NVIDIA's driver; no other
// process opens the stand-in. The process reads one question a line and answers each in one line. When cuDNN crashes on
// a question, the parent starts another child.
#pragma once

namespace ringtrain::cuda {

// This command-line argument makes the executable run as this process.
inline constexpr const char* planner_command = "cudnn-planner";
// Answers questions from standard input on standard output until the input ends. The first line is the device's
// description; the answer is "ready VERSION". Then "plan KEY" is answered with a plan in the form of to_line() with
// tabs. "reload KEY" is answered with that plan after two rounds of serialising and loading. "pack KEY" is answered
// with "packed COUNT", a tab and the plan; COUNT bytes follow the line, which are the serialised plan. "load COUNT KEY"
// is followed by COUNT bytes of that kind, and answered with "found" or with the reason why they are refused. "hash
// KEY" is answered with graph_hash(). A line that fails is answered with "error\tWHAT"; for the first line a tab and
// HINT follow.
int run_planner();

}  // namespace ringtrain::cuda
