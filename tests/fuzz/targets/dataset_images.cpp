// Reads data sets of images: header, arrays, records and their pictures. For an input of odd length the pictures are
// JPEG files, otherwise pixels.
#include "base/error.h"
#include "data/image_dataset.h"
#include "data/image_transform.h"
#include "data/jpeg.h"
#include "data_prep/verify.h"
#include "tests/fuzz/damaged_hdf5.h"
#include "tests/unit/image_shards.h"

namespace ringtrain::fuzz {
namespace {

void write_good(const std::string& path, bool jpeg) {
  TestImages images = raw_images(3, 8, 9);
  images.classes = 2;
  images.raw = !jpeg;
  images.with_checksums = jpeg;
  if (jpeg)
    for (auto& record : images.records) record = encode_jpeg({8, 9, 3, record}, 80);
  write_image_shard(path, images, 0, 3, 0, 1);
}

// Writes the checksums of the JPEG records of 3 images. Pixels have no such checksums here.
void recompute(hid_t file) {
  const std::vector<std::uint8_t> bytes = bytes_of(file, "images");
  const h5::Handle dataset(H5Dopen2(file, "offsets", H5P_DEFAULT), H5Dclose);
  if (dataset.get() < 0) return;
  const h5::Handle space(H5Dget_space(dataset.get()), H5Sclose), type(H5Dget_type(dataset.get()), H5Tclose);
  std::vector<std::uint64_t> offsets(4);
  if (H5Sget_simple_extent_npoints(space.get()) != 4 || H5Tget_class(type.get()) != H5T_INTEGER ||
      H5Dread(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, offsets.data()) < 0)
    return;
  offsets.erase(offsets.begin());
  write_checksums(file, bytes, offsets);
}

void read_all(const std::string& path) {
  const DatasetIndex index = read_dataset_index(path);
  expect(DatasetIndex::deserialize(index.serialize()).serialize() == index.serialize(), "an index reads back the same");
  if (!index.is_image()) return;
  const ImageDataset data(index);
  ImageTransform transform;
  transform.size = transform.resize = 8;
  ImageDecoder decoder(transform);
  std::vector<std::uint8_t> bytes, out(8 * 8 * 3);
  for (const std::int64_t sample : {std::int64_t{0}, index.total - 1}) {
    data.record(sample);
    data.read(sample, bytes);
    const ImageFormat& format = index.image;
    if (format.raw) {
      decoder.training_raw(bytes, format.height, format.width, format.channels, {}, out);
    } else {
      decoder.training(bytes, {}, out);
    }
  }
}

void read(std::string_view input) {
  const bool jpeg = input.size() % 2 == 1;
  const std::string path = damaged_file(
      jpeg ? "jpeg.h5" : "pixels.h5", input, [jpeg](const std::string& good) { write_good(good, jpeg); }, recompute);
  error_of([&] { verify_dataset(path); });
  read_all(path);
}

const Registered registered("dataset_images", read);

}  // namespace
}  // namespace ringtrain::fuzz
