// Reads the images of tests/golden/images, and the results of Pillow and torchvision for them (make_images.py).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/repository.h"

namespace ringtrain {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline Bytes golden_image(const std::string& name) {
  return read_file(repository() / "tests/golden/images" / (name + ".jpg"));
}

// Returns a list of images.json.
inline nlohmann::json golden_images(const char* list) {
  std::ifstream file(repository() / "tests/golden/images.json");
  EXPECT_TRUE(file.good());
  return nlohmann::json::parse(file).at(list);
}

// Returns the paths of photographs that are not part of the repository. The list is empty if they are missing.
inline std::vector<std::filesystem::path> sample_photographs() {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = repository() / "../shared/data/imagenet-samples";
  if (!std::filesystem::is_directory(folder)) return paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".JPEG") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace ringtrain
