// Makes square crops for training from JPEGs on one thread. The boxes are those that tests/bench/input_bench.py gives
// to Pillow and torchvision.
//
//   input_bench BOXES SIZE PASSES [whole]     a line of BOXES: top left height width flip(0, 1) path
//
// All files are first read into memory. The program prints the CPU seconds of every pass over them, which other
// processes disturb less than wall-clock time, and the CRC-32C of all results. With `whole`, it decodes whole images
// before it crops, which shows how much time it saves to decode only the crop.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/image_transform.h"
#include "data/jpeg.h"
#include "data/resize.h"

using namespace ringtrain;

namespace {

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void crop_of_whole(const std::vector<std::uint8_t>& jpeg, const CropBox& box, std::int64_t size,
                   std::vector<std::uint8_t>& out) {
  static BilinearResizer resizer;
  static std::vector<std::uint8_t> rows;
  const Image image = decode_jpeg(jpeg);
  resizer.start({box.height, size, 0, size}, {box.width, size, 0, size, box.flip}, out.data(), size * 3);
  const std::int64_t stride = box.width * 3 + resizer.padding_bytes();
  rows.resize(static_cast<std::size_t>(2 * stride));
  for (std::int64_t row = 0; row < box.height; row += 2) {
    const std::int64_t count = std::min<std::int64_t>(2, box.height - row);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(image.pixels.data() + ((box.top + row + i) * image.width + box.left) * 3, box.width * 3,
                  rows.data() + i * stride);
    resizer.push(rows.data(), count > 1 ? rows.data() + stride : nullptr);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) throw Error("usage: input_bench BOXES SIZE PASSES [whole]");
  ImageTransform transform;
  transform.size = std::atoll(argv[2]);
  const int passes = std::atoi(argv[3]);
  const bool whole = argc > 4;
  std::vector<CropBox> boxes;
  std::vector<std::vector<std::uint8_t>> files;
  std::ifstream list(argv[1]);
  CropBox box;
  for (std::string path;
       list >> box.top >> box.left >> box.height >> box.width >> box.flip && std::getline(list >> std::ws, path);) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    boxes.push_back(box);
  }
  if (files.empty()) throw Error(cat(argv[1], " holds no boxes"));
  ImageDecoder decoder(transform);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(transform.size * transform.size * 3));
  std::uint32_t crc = 0;
  for (int pass = -1; pass < passes; ++pass) {  // the first pass warms up and computes the checksum
    const double start = cpu_seconds();
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (whole)
        crop_of_whole(files[i], boxes[i], transform.size, out);
      else
        decoder.resized_crop(files[i], boxes[i], out);
      if (pass < 0) crc = crc32c(out, crc);
    }
    if (pass >= 0) std::printf("%.6f\n", cpu_seconds() - start);
  }
  std::printf("crc32c %08x of %zu images\n", crc, files.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "input_bench: error: %s\n", error.what());
  return 1;
}
