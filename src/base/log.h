// Lines for the user: information from rank 0 only, warnings from every rank with its label.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace ringtrain {

// Call once MPI is up; before, the process speaks as rank 0. `host` goes into the label of warnings of other ranks.
void set_log_rank(int rank, const std::string& host = "");

// One write per line, so that lines of several ranks do not mix.
void write_info_line(const std::string& line);     // stdout, rank 0 only
void write_warning_line(const std::string& line);  // stderr, "warning: ..." or "warning (rank 2 on node17): ..."

// Called before every line of this process, from the thread that writes it: whoever draws on the terminal (a progress
// bar) makes room. Empty: nobody.
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
