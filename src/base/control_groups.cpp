#include "base/control_groups.h"

#include <fstream>
#include <sstream>

namespace ringtrain {
namespace {

struct Mount {
  std::filesystem::path root, folder;  // the group `root` is seen at the folder
};

bool is_in_list(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Returns where version 1's hierarchy of the controller, or version 2's only hierarchy, is mounted. A line is
// "36 25 0:32 ROOT FOLDER OPTIONS ... - TYPE SOURCE OPTIONS".
std::optional<Mount> mount_of(const std::string& root, int version, const std::string& controller) {
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skipped, group, folder, type, source, options;
    before >> skipped >> skipped >> skipped >> group >> folder;
    after >> type >> source >> options;
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && is_in_list(options, controller))
      return Mount{group, folder};
  }
  return std::nullopt;
}

// A container may see only a part of the hierarchy, whose top is the mount's root.
void add_levels(const std::string& root, const Mount& mount, int version, const std::filesystem::path& group,
                std::vector<ControlGroup>& found) {
  std::filesystem::path below = group.lexically_relative(mount.root);
  if (below.empty() || *below.begin() == "..") below = ".";
  for (;; below = below.parent_path()) {
    const bool is_top = below.empty() || below == ".";
    const std::filesystem::path top = std::filesystem::path(root + "/") / mount.folder.relative_path();
    found.push_back({is_top ? top : top / below, version});
    if (is_top) return;
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> found;
  // A line is "hierarchy:controllers:group". In version 2 there is one hierarchy, and its controllers are not listed.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t controllers = line.find(':'), group = line.find(':', controllers + 1);
    if (controllers == std::string::npos || group == std::string::npos) continue;
    const std::string names = line.substr(controllers + 1, group - controllers - 1);
    if (!names.empty() && !is_in_list(names, controller)) continue;
    const int version = names.empty() ? 2 : 1;
    if (const auto mount = mount_of(root, version, controller))
      add_levels(root, *mount, version, line.substr(group + 1), found);
  }
  return found;
}

std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace ringtrain
