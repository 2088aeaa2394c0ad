#include "data_prep/images/commands.h"

#include <charconv>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "data_prep/common/ranks.h"
#include "data_prep/images/array_import.h"
#include "data_prep/images/convert.h"
#include "data_prep/images/idx_import.h"

namespace ringtrain {
namespace {

// The options that all conversions to images have.
template <class Options>
void add_image_options(CLI::App& c, Options& o, const std::string& encoding_help) {
  add_file_options(c, o, "512 MiB each");
  c.add_option("--class-list", o.class_list,
               "lines \"n01440764 tench\": class id and name (a tab may part them); label 0 is the first line")
      ->type_name("FILE");
  c.add_option("--split", o.split, "INPUT is one split")->type_name("train|validation");
  add_validation(c, o.validation, "share of each class held out for validation [0]");
  c.add_option("--short-side", o.short_side, "shrinks larger images to this short side and encodes them again")
      ->type_name("N")
      ->check(whole_number(1));
  c.add_option("--size", o.size, "resizes to this short side and cuts out the central square")
      ->type_name("N")
      ->check(whole_number(1));
  c.add_option("--quality", o.quality, "JPEG quality of pictures that are encoded again [95]")
      ->type_name("Q")
      ->check(whole_number(1));
  c.add_option("--encoding", o.encoding, encoding_help)->type_name("jpeg|raw");
  c.add_option("--check", o.check,
               "decode: decodes every image, which finds damaged ones; header: reads only their size [decode]")
      ->type_name("decode|header");
  c.add_option("--broken", o.broken, "fail: lists all and writes nothing; skip: lists all and leaves them out [fail]")
      ->type_name("fail|skip");
  c.add_option(
       "--orientation", o.orientation,
       "of pictures whose EXIF says that they are stored turned: keep stores them as they are; apply turns them "
       "and encodes them again [keep]")
      ->type_name("keep|apply");
  c.add_flag("--statistics", o.statistics, "stores mean and deviation of the training pixels [ImageNet's]");
  c.add_option("--threads", o.threads, "per rank [the CPUs it may use]")->type_name("N")->check(whole_number(1));
  c.add_option("--memory", o.memory_gib, "per rank: images kept from the first pass to the second [2]")
      ->type_name("GIB")
      ->check(number(0));
  c.add_flag("--resume", o.resume, "continues a conversion that was killed, and keeps its finished files");
}

void add_rows(CLI::App& c, const std::string& name, std::optional<ImportRows>& rows, const std::string& help) {
  const auto read = [name, &rows](const std::string& text) {
    ImportRows range;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, range.first);
    if (first.ec == std::errc{} && first.ptr != end && *first.ptr == ':') {
      const auto last = std::from_chars(first.ptr + 1, end, range.end);
      if (last.ec == std::errc{} && last.ptr == end) {
        rows = range;
        return;
      }
    }
    throw Error(cat("option ", name, ": '", text, "' is not FIRST:END"),
                "for example 0:50000, which is the first 50000 rows");
  };
  c.add_option_function<std::string>(name, read, help)->type_name("FIRST:END");
}

}  // namespace

DataCommand declare_images(CommandLine& program) {
  CLI::App& c = program.add(
      "images",
      "Turns folders, lists or tar files of JPEG and PNG images into a data set. INPUT is a folder with train/ and "
      "val/ (training, valid, dev, ... in any case), each with a folder per class, or with a tar file per class "
      "(n01440764.tar, not compressed; read in place); or it holds the class folders (or tar files) itself; or it is a "
      "tar file of such a folder. JPEG files are stored as they are; PNG files and CMYK JPEGs become RGB JPEGs. "
      "Several "
      "ranks share the work: mpirun -n 8 ringtrain-data images ... gives the same bytes as one.");
  struct Typed : ImagesOptions {
    std::vector<std::string> words;
  };
  const auto o = std::make_shared<Typed>();
  add_operands(c, o->words, "INPUT");
  add_image_options(c, *o, "jpeg, or raw: decoded pixels of one size [jpeg]");
  c.add_option("--list", o->list,
               "lines \"path label\": images below INPUT instead of class folders; the label is a number or a class id")
      ->type_name("FILE");
  c.add_option("--validation-list", o->validation_list,
               "the same for the validation split (ImageNet's flat folder of validation images)")
      ->type_name("FILE");
  return {&c, true, [o, &c] {
            o->input = one_input(c, o->words);
            const Ranks ranks;
            convert_images(*o, ranks, std::cout);
            return 0;
          }};
}

DataCommand declare_import(CommandLine& program) {
  CLI::App& c = program.add(
      "import",
      "Turns other people's HDF5 arrays of images into a data set. The images are u8 pixels (N, H, W, C), (N, C, H, W) "
      "or (N, H, W), arrays of MATLAB (save -v7.3), or encoded images of variable length (Fuel's encoded_images and "
      "targets). Labels are whole numbers (N), (N, 1) or (1, N) that count from 0, or from --first-label.");
  struct Typed : ImportOptions {
    std::vector<std::string> words;
  };
  const auto o = std::make_shared<Typed>();
  o->encoding.clear();
  add_operands(c, o->words, "FILE.h5");
  show_as_required(*c.add_option("--images", o->images, "data set of the images")->type_name("KEY"));
  show_as_required(*c.add_option("--labels", o->labels, "data set of the labels")->type_name("KEY"));
  c.add_option("--layout", o->layout,
               "order of the axes as h5py and h5dump show them: N images, H height, W width, C channels, such as HWCN "
               "[from the shape]")
      ->type_name("LETTERS");
  c.add_option("--first-label", o->first_label, "is subtracted from every label [0]")
      ->type_name("N")
      ->check(whole_number(0));
  add_rows(c, "--rows", o->rows, "uses these rows only");
  add_rows(c, "--validation-rows", o->validation_rows, "rows of the validation split");
  add_image_options(c, *o, "[raw for pixels, jpeg for encoded images]");
  return {&c, true, [o, &c] {
            o->input = one_input(c, o->words);
            const Ranks ranks;
            import_arrays(*o, ranks, std::cout);
            return 0;
          }};
}

DataCommand declare_idx(CommandLine& program) {
  CLI::App& c = program.add(
      "idx",
      "Turns a pair of IDX files, such as MNIST's and Fashion-MNIST's, into a data set. IMAGES holds u8 pixels "
      "(N, H, W) or (N, H, W, C), LABELS whole numbers (N) from 0. Both may be compressed by gzip. The files of the "
      "test split are converted with the same --out and --split validation.");
  struct Typed : IdxOptions {
    std::vector<std::string> words;
  };
  const auto o = std::make_shared<Typed>();
  o->encoding = "raw";
  add_operands(c, o->words, "IMAGES LABELS");
  add_image_options(c, *o, "raw or jpeg [raw]");
  return {&c, true, [o, &c] {
            if (o->words.size() != 2)
              throw Error(cat("ringtrain-data idx: expected IMAGES LABELS, found ", o->words.size(), " file(s)"),
                          "ringtrain-data idx --help");
            o->images = o->words[0], o->labels = o->words[1];
            const Ranks ranks;
            import_idx(*o, ranks, std::cout);
            return 0;
          }};
}

}  // namespace ringtrain
