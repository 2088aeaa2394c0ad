// The rule for files that an option names, such as `evaluate --json FILE`: a wrong name must not destroy another file.
//
//   a device, a pipe, or a link to one    is written into
//   a link to a file                      the file is replaced; the link stays
//   a file with an earlier output         is replaced; so is an empty file
//   any other file, a folder, a disk      is refused
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ringtrain {

struct OutputKind {
  std::string name;                                     // for messages: "result of ringtrain evaluate --json"
  std::function<bool(const std::string& path)> is_one;  // whether a regular file is an earlier output of this kind
  std::string advice = "remove it first, or give another name";  // if another file is refused
};

// A kind of JSON file. Objects with all of these keys are earlier outputs.
OutputKind json_output(const std::string& name, std::vector<std::string> keys);
// A kind of CSV table. Files that begin with these names of columns are earlier outputs.
OutputKind table_output(const std::string& name, const std::string& first_columns);
// Replaces every file, for commands that have made sure of it themselves.
OutputKind any_file();

// Throws Error if the rule refuses the path. A command calls it before its work, so that nothing is lost.
void expect_output(const std::string& path, const OutputKind& kind);

// Has `write` make the file `to` and gives it the name `path`, as publish_written() does. A device or pipe is `to`
// itself. Throws the errors of expect_output(), too.
void write_output(const std::string& path, const OutputKind& kind,
                  const std::function<void(const std::string& to)>& write);
void write_output(const std::string& path, const OutputKind& kind, const std::string& text);
// Does the same for a text that many ranks may write at once, and does not wait for the disk. Replaces every file.
void write_output_at_once(const std::string& path, const std::string& text);

// Returns the file that the links of `path` lead to. It may be absent. Throws Error if they lead nowhere.
std::string end_of_links(const std::string& path);

}  // namespace ringtrain
