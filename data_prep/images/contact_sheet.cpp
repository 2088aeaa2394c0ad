#include "data_prep/images/contact_sheet.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "base/error.h"
#include "base/random.h"
#include "data/image_dataset.h"
#include "data/sampler.h"
#include "data_prep/images/font.h"
#include "data_prep/images/png.h"

namespace ringtrain {
namespace {

constexpr std::int64_t side = 128, margin = 6;  // pixels
constexpr std::int64_t cell_width = side + margin, cell_height = side + 2 * line_height + margin;

DatasetIndex index_of(const std::string& prefix) {
  try {
    return read_dataset_index(prefix);
  } catch (const Error& error) {
    if (std::string(error.what()).find("no data set at") == std::string::npos) throw;
  }
  return read_dataset_index(prefix + "-train");
}

Image image_of(const ImageDataset& dataset, std::int64_t sample) {
  std::vector<std::uint8_t> bytes;
  dataset.read(sample, bytes);
  const ImageFormat& image = dataset.index().image;
  if (image.raw) return {image.height, image.width, image.channels, std::move(bytes)};
  try {
    return decode_jpeg(bytes);
  } catch (const Error& error) {
    throw Error(cat(dataset.name_of(sample), ": ", error.what()), "ringtrain-data verify checks all of the data set");
  }
}

// Returns the image, shrunk to fit into side x side pixels.
Image thumbnail(const Image& image) {
  const std::int64_t longer = std::max(image.height, image.width);
  return resize_bilinear(image, std::max<std::int64_t>(1, image.height * side / longer),
                         std::max<std::int64_t>(1, image.width * side / longer));
}

void paste(const Image& image, std::int64_t left, std::int64_t top, Image& sheet) {
  for (std::int64_t y = 0; y < image.height; ++y) {
    for (std::int64_t x = 0; x < image.width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c) {
        const std::int64_t from = (y * image.width + x) * image.channels + (image.channels == 3 ? c : 0);
        sheet.pixels[static_cast<std::size_t>(((top + y) * sheet.width + left + x) * 3 + c)] =
            image.pixels[static_cast<std::size_t>(from)];
      }
    }
  }
}

void write_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  const std::string temporary = path + ".tmp";
  errno = 0;
  std::ofstream file(temporary, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(temporary.c_str());
    throw Error(cat(path, ": cannot write: ", std::strerror(reason)));
  }
}

}  // namespace

void make_contact_sheet(const ContactSheetOptions& options, std::ostream& log) {
  if (options.out.empty()) throw Error("--out FILE.png is missing");
  if (!options.out.ends_with(".png")) throw Error(cat("--out ", options.out, ": expected a name that ends in .png"));
  if (options.count < 1 || options.count > 10000) throw Error(cat("--count ", options.count, ": expected 1 to 10000"));
  if (options.columns < 1 || options.columns > 100)
    throw Error(cat("--columns ", options.columns, ": expected 1 to 100"));
  DatasetIndex index = index_of(options.prefix);
  if (!index.is_image())
    throw Error(cat(options.prefix, ": is a data set of kind '", index.kind, "'"), "a contact sheet needs images");
  const ImageDataset dataset(std::move(index));
  const ImageFormat& format = dataset.index().image;
  const std::int64_t total = dataset.index().total, count = std::min(options.count, total);
  const std::int64_t columns = std::min(options.columns, count), rows = (count + columns - 1) / columns;
  Image sheet{rows * cell_height + margin, columns * cell_width + margin, 3, {}};
  sheet.pixels.assign(static_cast<std::size_t>(sheet.height * sheet.width * 3), 255);
  const EpochOrder order(random_key(options.seed, RandomPurpose::sampling), 0, total);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t sample = order(i);
    const Image image = image_of(dataset, sample), small = thumbnail(image);
    const std::int64_t left = margin + i % columns * cell_width, top = margin + i / columns * cell_height;
    paste(small, left + (side - small.width) / 2, top + (side - small.height) / 2, sheet);
    const std::int32_t label = dataset.record(sample).label;
    std::string name = format.class_names[static_cast<std::size_t>(label)];
    name.resize(std::min<std::size_t>(name.size(), side / character_width));
    draw_text(sheet, left, top + side + 2, name);
    draw_text(sheet, left, top + side + 2 + line_height, cat(label, "  ", image.width, "x", image.height));
  }
  write_file(options.out, encode_png(sheet));
  log << options.out << ": " << count << " of " << total << " images of " << dataset.index().prefix << "\n";
}

}  // namespace ringtrain
