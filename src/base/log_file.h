// Sends lines for the user to a file, for a process that does several tasks one after the other.
#pragma once

#include <string>

namespace ringtrain {

// After this call, the lines of this process (base/log.h), including warnings, are appended to the file. "" goes back
// to stdout and stderr. Several processes may write to the same file. Throws Error.
void set_log_file(const std::string& path);
bool has_log_file();
// Writes text to the output of information lines, on any rank. A progress bar, for example, draws with it.
void write_log_text(const std::string& text);

}  // namespace ringtrain
