#include "base/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* another_name = "give another name";

// Returns a JSON value without members if the file is none, or too large for an output.
Json small_json(const std::string& path) {
  constexpr std::uintmax_t most = 64 << 20;
  std::error_code failed;
  return fs::file_size(path, failed) > most || failed ? Json() : parse_json(file_text(path));
}

// Returns what a file seems to be, after "it is"; "" if that is not known.
std::string described(const std::string& path) {
  const std::string start = first_bytes(path, 512);
  if (start.starts_with("\x89HDF\r\n\x1a\n")) return "an HDF5 file, such as a checkpoint or a data set";
  if (const ForeignFile foreign = foreign_file(start)) return foreign.format;
  constexpr std::size_t length_bytes = 8;  // of a safetensors header
  if (start.substr(std::min(length_bytes, start.size())).starts_with("{\"")) return "a safetensors file";
  return small_json(path).is_object() ? "a JSON file of another kind" : "";
}

bool is_standard_output(const struct stat& found) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open {};
    if (::fstat(stream, &open) == 0 && open.st_dev == found.st_dev && open.st_ino == found.st_ino) return true;
  }
  return false;
}

enum class Target { file, stream };  // a stream is a device or a pipe

// Returns how to write to `path`. Throws Error if the rule refuses it.
Target target_of(const std::string& path, const OutputKind& kind) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    end_of_links(path);
    return Target::file;
  }
  if (S_ISDIR(found.st_mode)) throw Error(cat(path, ": is a folder, expected the name of a file"), another_name);
  if (S_ISBLK(found.st_mode)) throw Error(cat(path, ": is a disk, expected the name of a file"), another_name);
  if (!S_ISREG(found.st_mode)) return Target::stream;
  if (is_standard_output(found))
    throw Error(cat(path, ": this program's own lines go to that file"), "give another file");
  if (found.st_size > 0 && !kind.is_one(path)) {
    const std::string what = described(path);
    throw Error(cat(path, ": exists already, and is no ", kind.name, what.empty() ? "" : cat("; it is ", what)),
                kind.advice);
  }
  if ((found.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0)
    throw Error(cat(path, ": exists already, and is write-protected"), kind.advice);
  return Target::file;
}

}  // namespace

OutputKind json_output(const std::string& name, std::vector<std::string> keys) {
  return {name, [keys = std::move(keys)](const std::string& path) {
            const Json json = small_json(path);
            return std::ranges::all_of(keys, [&](const std::string& key) { return json.contains(key); });
          }};
}

OutputKind table_output(const std::string& name, const std::string& first_columns) {
  return {name, [first_columns](const std::string& path) {
            return first_bytes(path, first_columns.size()) == first_columns;
          }};
}

OutputKind any_file() {
  return {"file", [](const std::string&) { return true; }};
}

std::string end_of_links(const std::string& path) {
  constexpr int most = 40;  // as Linux
  fs::path end = path;
  std::error_code failed;
  for (int links = 0; fs::is_symlink(fs::symlink_status(end, failed)); ++links) {
    if (links == most) throw Error(cat(path, ": its links lead nowhere"), another_name);
    end = end.parent_path() / fs::read_symlink(end, failed);  // an absolute target replaces the folder
  }
  return end.string();
}

void expect_output(const std::string& path, const OutputKind& kind) {
  target_of(path, kind);
}

void write_output(const std::string& path, const OutputKind& kind,
                  const std::function<void(const std::string& to)>& write) {
  if (target_of(path, kind) == Target::stream) {
    write(path);
    return;
  }
  const std::string final = end_of_links(path);
  const std::string temporary = own_temporary(final) + ".tmp";
  publish_written(temporary, final, [&] { write(temporary); });
}

void write_output(const std::string& path, const OutputKind& kind, const std::string& text) {
  write_output(path, kind, [&](const std::string& to) { write_text_file(to, text, path); });
}

void write_output_at_once(const std::string& path, const std::string& text) {
  if (target_of(path, any_file()) == Target::stream)
    write_text_file(path, text, path);
  else
    replace_cache_file(end_of_links(path), text);
}

}  // namespace ringtrain
