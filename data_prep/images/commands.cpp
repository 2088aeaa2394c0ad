#include "data_prep/images/commands.h"

#include <iostream>

#include "base/error.h"
#include "data_prep/common/arguments.h"
#include "data_prep/images/array_import.h"
#include "data_prep/images/contact_sheet.h"
#include "data_prep/images/convert.h"

namespace ringtrain {
namespace {

// The options that all conversions to images have.
const std::set<std::string> image_values = {"--out",        "--shards",  "--seed",    "--threads",    "--memory",
                                            "--short-side", "--size",    "--quality", "--encoding",   "--check",
                                            "--broken",     "--license", "--split",   "--validation", "--class-list"};
const std::set<std::string> image_switches = {"--statistics", "--force", "--resume"};

std::set<std::string> with(std::set<std::string> all, const std::set<std::string>& more) {
  all.insert(more.begin(), more.end());
  return all;
}

template <class T>
void positive(const Arguments& arguments, const std::string& name, T& value) {
  value = arguments.number(name, value);
  if (arguments.values.contains(name) && value < 1) throw Error(cat(name, " ", value, ": expected at least 1"));
}

void read_image_options(const Arguments& arguments, ImageOptions& options) {
  options.out = arguments.text("--out", "");
  positive(arguments, "--shards", options.shards);
  options.seed = arguments.number("--seed", options.seed);
  positive(arguments, "--threads", options.threads);
  options.memory_gib = arguments.number("--memory", options.memory_gib);
  positive(arguments, "--short-side", options.short_side);
  positive(arguments, "--size", options.size);
  positive(arguments, "--quality", options.quality);
  options.encoding = arguments.text("--encoding", options.encoding);
  options.check = arguments.text("--check", options.check);
  options.broken = arguments.text("--broken", options.broken);
  options.license = arguments.text("--license", options.license);
  options.statistics = arguments.has("--statistics");
  options.force = arguments.has("--force");
  options.resume = arguments.has("--resume");
}

std::optional<RowRange> rows(const Arguments& arguments, const std::string& name) {
  const std::string text = arguments.text(name, "");
  if (text.empty()) return std::nullopt;
  RowRange range;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.first);
  if (first.ec == std::errc{} && first.ptr != end && *first.ptr == ':') {
    const auto last = std::from_chars(first.ptr + 1, end, range.end);
    if (last.ec == std::errc{} && last.ptr == end) return range;
  }
  throw Error(cat("option ", name, ": '", text, "' is not FIRST:END"),
              "for example 0:50000, which is the first 50000 rows");
}

}  // namespace

const char* const images_usage = R"(ringtrain-data images INPUT --out PREFIX [options]

Writes PREFIX-train-00000-of-00004.h5, ..., PREFIX-validation-00000-of-00004.h5, ...
INPUT is a folder with train/ and val/ (or validation/), each with a folder per class, or with a tar file per class
(n01440764.tar, not compressed; read in place); or it holds the class folders (or tar files) itself. JPEG files are
stored as they are; PNG files and CMYK JPEGs become RGB JPEGs. Several ranks share the work:
mpirun -n 8 bin/ringtrain-data images ... gives the same bytes as one.

  --out PREFIX            folder and first part of the files' names
  --class-list FILE       lines "n01440764 tench": class id and name; label 0 is the first line. Without it, the labels
                          count the sorted class folders
  --list FILE             lines "path label": images below INPUT instead of class folders; the label is a number or a
                          class id
  --validation-list FILE  the same for the validation split (ImageNet's flat folder of validation images)
  --split NAME            INPUT is one split: train or validation
  --validation SHARE      share of each class held out for validation [0]
  --short-side N          shrink larger images to this short side and encode them again
  --size N                resize to this short side and cut out the central square
  --quality Q             of the JPEGs that are encoded again [95]
  --encoding NAME         jpeg, or raw: decoded pixels of one size [jpeg]
  --check HOW             decode every image (finds cut-off and damaged ones), or header: only their size [decode]
  --broken HOW            fail (lists all, writes nothing) or skip (lists all, leaves them out) [fail]
  --statistics            store mean and deviation of the training pixels [ImageNet's]
  --shards N              files per split; does not change the data set [512 MiB each]
  --seed N                of the order on disk and of what is held out [1]
  --threads N             per rank [the CPUs it may use]
  --memory GIB            per rank: images kept from the first pass to the second [2]
  --license TEXT          stored in the files
  --resume                go on with a conversion that was killed: its finished files are taken over
  --force                 overwrite
)";

const char* const import_usage = R"(ringtrain-data import FILE.h5 --images KEY --labels KEY --out PREFIX [options]

Other people's HDF5 arrays: u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or encoded images of variable length
(Fuel's encoded_images and targets). Labels are integers (N) or (N, 1) that count from 0.

  --images KEY             data set of the images
  --labels KEY             data set of the labels
  --layout NAME            NHWC or NCHW [from the shape]
  --rows FIRST:END         use these rows only
  --validation-rows FIRST:END  rows of the validation split
  --class-list FILE        lines "n01440764 tench": class id and name of label 0, 1, ...
  --encoding NAME          raw or jpeg [raw for pixels, jpeg for encoded images]

--out, --split, --validation, --short-side, --size, --quality, --check, --broken, --statistics, --shards, --seed,
--threads, --memory, --license, --resume and --force are those of ringtrain-data images.
)";

const char* const contact_sheet_usage = R"(ringtrain-data contact-sheet PREFIX --out sheet.png [options]

Draws random images of a data set with their classes. PREFIX is one split (data/pets-train), or a converter's --out
(its training split).

  --out FILE.png   the sheet
  --count N        images [48]
  --columns N      images side by side [8]
  --seed N         which ones [1]
)";

int run_images(const std::vector<std::string>& words) {
  const Arguments arguments(words, with(image_values, {"--list", "--validation-list"}), image_switches);
  ImagesOptions options;
  read_image_options(arguments, options);
  options.input = arguments.one_input();
  options.class_list = arguments.text("--class-list", "");
  options.list = arguments.text("--list", "");
  options.validation_list = arguments.text("--validation-list", "");
  options.split = arguments.text("--split", "");
  options.validation = arguments.share();
  const Ranks ranks;
  convert_images(options, ranks, std::cout);
  return 0;
}

int run_import(const std::vector<std::string>& words) {
  const Arguments arguments(
      words, with(image_values, {"--images", "--labels", "--layout", "--rows", "--validation-rows"}), image_switches);
  ImportOptions options;
  options.encoding.clear();
  read_image_options(arguments, options);
  options.input = arguments.one_input();
  options.images = arguments.text("--images", "");
  options.labels = arguments.text("--labels", "");
  options.layout = arguments.text("--layout", "");
  options.class_list = arguments.text("--class-list", "");
  options.split = arguments.text("--split", "");
  options.validation = arguments.share();
  options.rows = rows(arguments, "--rows");
  options.validation_rows = rows(arguments, "--validation-rows");
  const Ranks ranks;
  import_arrays(options, ranks, std::cout);
  return 0;
}

int run_contact_sheet(const std::vector<std::string>& words) {
  const Arguments arguments(words, {"--out", "--count", "--columns", "--seed"}, {});
  ContactSheetOptions options;
  options.prefix = arguments.one_input();
  options.out = arguments.text("--out", "");
  options.count = arguments.number("--count", options.count);
  options.columns = arguments.number("--columns", options.columns);
  options.seed = arguments.number("--seed", options.seed);
  make_contact_sheet(options, std::cout);
  return 0;
}

}  // namespace ringtrain
