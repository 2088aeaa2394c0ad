// JPEG -> square crops for training, one thread: the same boxes as tests/bench/input_bench.py gives Pillow and
// torchvision.
//
//   input_bench BOXES SIZE PASSES [whole]     a line of BOXES: top left height width flip(0, 1) path
//
// Files are read into memory first. Prints the seconds of every pass over them, and the CRC-32C of all results.
// `whole` decodes whole pictures, which shows what decoding only the crop saves.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "data/hdf5.h"
#include "data/image_transform.h"
#include "data/jpeg.h"

using namespace ringtrain;

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
  for (int pass = -1; pass < passes; ++pass) {  // the first warms up, and makes the checksum
    const double start = now_seconds();
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (whole) decode_jpeg(files[i]);
      decoder.resized_crop(files[i], boxes[i], out);
      if (pass < 0) crc = h5::crc32c(out, crc);
    }
    if (pass >= 0) std::printf("%.6f\n", now_seconds() - start);
  }
  std::printf("crc32c %08x of %zu pictures\n", crc, files.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "input_bench: error: %s\n", error.what());
  return 1;
}
