// Writes lines for the user. Information comes from rank 0 only. Warnings come from every rank, with the rank's label.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace ringtrain {

// Call this after MPI has started. Before that, the process writes as rank 0. `host` appears in the label of warnings
// of other ranks.
void set_log_rank(int rank, const std::string& host = "");

// Each line is one write, so that lines of several ranks do not mix.
void write_info_line(const std::string& line);     // stdout, rank 0 only
void write_warning_line(const std::string& line);  // stderr, "warning: ..." or "warning (rank 2 on node17): ..."

// Writes text to stdout at once, on any rank. A progress bar, for example, draws with it.
void write_out(const std::string& text);

// Throws Error if standard output did not take everything that this process has written, for example on a full disk.
void check_standard_output();

// The hook is called before every line of this process, in the thread that writes the line. A progress bar uses it to
// clear the terminal's line. Empty: no hook.
void set_before_line(std::function<void()> hook);

template <class... Parts>
void log_info(const Parts&... parts) {
  write_info_line(cat(parts...));
}

template <class... Parts>
void log_warning(const Parts&... parts) {
  write_warning_line(cat(parts...));
}

}  // namespace ringtrain
