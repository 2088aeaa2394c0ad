// Converts images (folders, lists, or tar files of JPEG and PNG) into a data set of kind "image".
//
// The work has three parts. listing.h finds the images and their labels, on rank 0; class_folders.h, class_list.h and
// file_tree.h read the kinds of input. record.h reads the bytes of one image, and turns them into what is stored.
// convert_listing() runs two passes over the list on all ranks and threads (passes.h): the first finds sizes and
// checksums, and the second writes the shards. Other people's arrays (import.h) take the same way with another list and
// source.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "data_prep/common/ranks.h"
#include "data_prep/common/shard_writer.h"
#include "data_prep/images/listing.h"
#include "data_prep/images/record.h"

namespace ringtrain {

// Writes listed images into shards, with all ranks and threads. Pass 1 examines every image and finds the sizes. Pass 2
// writes the bytes. The files depend only on the images, the options and the seed. The share for validation is of each
// class.
struct ImageOptions : FileOptions {
  ImageOptions() { shards = 0; }  // about 512 MiB each
  std::int64_t threads = 0;       // per rank; 0: number of CPUs in the affinity mask
  double memory_gib = 2;          // per rank, to keep records of pass 1, so that pass 2 need not read them again
  std::int64_t short_side = 0;    // see RecordOptions
  std::int64_t size = 0;
  std::int64_t quality = 0;          // quality of JPEGs; 0: 95
  std::string encoding = "jpeg";     // or "raw"
  std::string check = "decode";      // or "header"
  std::string broken = "fail";       // or "skip"
  std::string orientation = "keep";  // or "apply": turn images as EXIF says
  bool statistics = false;           // store mean and deviation of the training pixels, not ImageNet's
  bool resume = false;               // keep the shards that a killed conversion had finished
  std::string class_list;            // path of a file; "": the classes are those of the input
  std::string split;                 // the only split, "train" or "validation"; "": both
};

struct ImagesReport {
  struct Split {
    std::int64_t samples = 0, shards = 0, resumed_shards = 0;
    std::uint64_t bytes = 0;  // size of all records
  };
  std::array<Split, 2> splits;
  std::int64_t classes = 0;
  std::int64_t smallest_class = 0, largest_class = 0;  // images of the training split, or of the only one
  std::int64_t resized = 0;
  std::int64_t with_alpha = 0;
  std::int64_t deep = 0, deep_and_dark = 0;              // PNGs of 16 bits; those whose upper 8 bits are below 16
  std::int64_t turned = 0;                               // images with an EXIF orientation other than upright
  std::vector<std::string> broken, converted, doubtful;  // "path: why", on rank 0
  std::vector<std::string> warnings;                     // about the whole data set, on rank 0
  std::vector<double> mean, std;
  std::string dataset_uuid;
  double examine_seconds = 0, write_seconds = 0;
};

// Throws Error when options contradict each other.
void check_image_options(const ImageOptions& options);

// Throws Error when options.validation is no share or options.split no split.
void check_split_options(const ImageOptions& options);

// On rank 0, checks and locks the names of the output files of the splits, before any long work. It makes no data file
// yet. Other ranks get null.
std::unique_ptr<OutputFiles> make_output_files(const ImageOptions& options, const Ranks& ranks);

// Converts the listing. All ranks must call it with the same listing. `source_name` is stored in the files.
ImagesReport convert_listing(const ImageOptions& options, const RecordOptions& records, const ImageListing& listing,
                             const ListedImageSource& source, const std::string& source_name, OutputFiles* files,
                             const Ranks& ranks, std::ostream& log);

// Returns those of the options that say how records are made.
RecordOptions record_options(const ImageOptions& options);

// Without a class list, class ids are the sorted folder names. Without a split, train/ and val/ below the input are
// used if they are there.
struct ImagesOptions : ImageOptions {
  std::string input;
  std::string list, validation_list;  // paths of files
};

// Runs the whole conversion. All ranks must call it. On rank 0, `log` gets the messages for the user.
ImagesReport convert_images(const ImagesOptions& options, const Ranks& ranks, std::ostream& log);

}  // namespace ringtrain
