// Helps tests of files that the user may not read. Root may read every file, so the tested code must not run as root.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace ringtrain {

// If root runs the tests, this process is the user nobody during the object's lifetime and owns `folder` with all its
// files. For other users the object does nothing.
class AsNobody {
 public:
  explicit AsNobody(const std::filesystem::path& folder) : was_root_(::geteuid() == 0) {
    if (!was_root_) return;
    EXPECT_EQ(::lchown(folder.c_str(), nobody, nobody), 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      EXPECT_EQ(::lchown(entry.path().c_str(), nobody, nobody), 0);
    EXPECT_EQ(::seteuid(nobody), 0);
  }
  ~AsNobody() {
    if (was_root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  static constexpr uid_t nobody = 65534;
  const bool was_root_;
};

}  // namespace ringtrain
