// Files that appear whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ringtrain {

// Syncs `temporary` to disk, renames it to `final` and syncs the folder. Throws Error; `final` is then as it was
// before.
void publish_file(const std::string& temporary, const std::string& final);

// Replaces `path` with `text` through <path>.tmp and publish_file(). Throws Error; `path` is then as it was before.
void write_file_atomically(const std::string& path, const std::string& text);

// The same for a cache, which other processes may replace at the same time: through a name of this process alone, in a
// folder that is made where it is missing, and not synced. False, and `path` is as it was before, where that fails.
bool replace_cache_file(const std::string& path, const std::string& text);

// `path` if nothing is there, otherwise the first of the names "a-2.txt", "a-3.txt", ... that is free.
std::string unused_path(const std::string& path);

// Copies a file to `to`, which must not exist, and sends it to the disk piece by piece; `progress` is called with the
// bytes of each. Throws Error.
void copy_to_disk(const std::string& from, const std::string& to,
                  const std::function<void(std::int64_t bytes)>& progress);

// What to do when writing failed with this errno: "free some space ..."; "" when there is no advice.
std::string advice_for_writing(int reason);

}  // namespace ringtrain
