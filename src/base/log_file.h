// Lines for the user in a file of their own, for a process that works on several things one after the other.
#pragma once

#include <string>

namespace ringtrain {

// From now on the lines of this process (base/log.h) go to the end of this file, warnings too; "": to stdout and stderr
// as before. Several processes may write to one file. Throws Error.
void set_log_file(const std::string& path);
bool has_log_file();
// Where information goes, whatever the rank: for whoever draws there.
void write_log_text(const std::string& text);

}  // namespace ringtrain
