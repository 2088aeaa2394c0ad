// The steps of a conversion of images: pass 1 examines them (examine.cpp), pass 2 writes the shards (write.cpp), and a
// report says what was found (report.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "data/hdf5.h"
#include "data_prep/common/shard_writer.h"
#include "data_prep/images/class_list.h"
#include "data_prep/images/convert.h"

namespace ringtrain {

// Pass 1 reads and checks every image and makes its record. All ranks get the sizes and checksums of all records.

struct Examined {
  std::uint64_t bytes = 0;  // size of the record
  std::uint32_t crc32c = 0;
  std::int32_t height = 0, width = 0, channels = 0;
  std::int16_t brightest =
      -1;  // largest value of pixels that were found as such; -1: of a file, which was not looked at
  bool broken = false;
  bool resized = false, turned = false, with_alpha = false, deep = false, deep_and_dark = false;  // see ImageRecord
};

struct ImageNote {
  std::uint64_t split = 0, index = 0;
  std::string text;         // "path: reason"
  std::string reason = {};  // of a broken image
};

struct Examination {
  std::array<std::vector<Examined>, 2> items;                   // same order as the listing; on all ranks
  std::vector<ImageNote> broken, converted, doubtful;           // in the listing's order; on rank 0
  PixelSums sums;                                               // sums over the training split; on all ranks
  std::array<std::vector<std::vector<std::uint8_t>>, 2> cache;  // records that this rank kept; otherwise empty
};

// Maps positions on disk to indices in the listing, broken images included. Shards are pieces of this random order.
std::vector<std::int64_t> disk_order(std::size_t count, SplitIndex split, std::uint64_t seed);

// Runs pass 1. All ranks must call it with the same listing.
Examination examine_images(const ImageOptions& options, const RecordOptions& records, const ImageListing& listing,
                           const ListedImageSource& source, int threads, const Ranks& ranks);

// Pass 2 writes the shards of one split. ImageShardWriter writes one of them.

// The attributes that all shards of an image split have, in addition to those of SplitDescription.
struct ImageSetDescription {
  bool raw = false;
  std::int64_t height = 0, width = 0, channels = 3;  // of raw records; height and width in pixels
  ClassList classes;
  std::vector<double> mean, std;  // 3 each, of pixels / 255
};

// The tables of one shard, with a value per record in the shard's order.
struct ImageColumns {
  std::vector<std::uint64_t> offsets;  // records + 1 values; raw shards use them too, but do not store them
  std::vector<std::int32_t> labels, shapes;
  std::vector<std::uint64_t> sample_ids;
  std::vector<std::uint32_t> crc32c;
  std::vector<std::string> keys;
};

// Writes one shard of kind "image". The sizes of all records are known when the shard is created. The bytes may then
// come from several threads in any order.
class ImageShardWriter {
 public:
  ImageShardWriter(const SplitDescription& split, const ImageSetDescription& set, std::int64_t shard,
                   const std::string& path, const ImageColumns& columns);
  ~ImageShardWriter();
  ImageShardWriter(const ImageShardWriter&) = delete;
  ImageShardWriter& operator=(const ImageShardWriter&) = delete;
  // Writes bytes [offset, offset + bytes.size()) of `images`. May be called from any thread.
  void write(std::uint64_t offset, std::span<const std::uint8_t> bytes) const;
  void finish();  // syncs, writes `complete`, syncs

 private:
  h5::File file_;
  int descriptor_ = -1;
  std::uint64_t address_ = 0;
};

// Returns true if the file is a finished shard, and a conversion with this description would write the same shard.
bool is_finished_shard(const std::string& path, const SplitDescription& split, std::int64_t shard);

struct SplitPlan {
  SplitIndex index = train_split;
  SplitDescription description;
  std::vector<std::int64_t> order;        // position on disk -> index in the listing; broken images are left out
  std::vector<std::uint64_t> sample_ids;  // by index in the listing
};

// Ids of kept images count up in the listing's order. Those of the validation split begin here. They therefore never
// equal ids of the training split, even if the splits were converted one at a time.
inline constexpr std::uint64_t first_validation_id = std::uint64_t{1} << 40;

SplitPlan plan_split(SplitIndex split, const ImageOptions& options, const Examination& examination);

// Writes this rank's shards to <name>.tmp, except those that are there already and finished. Every rank has a run of
// consecutive shards. Throws Error if an image changed after pass 1.
void write_shards(const SplitPlan& plan, const ImageSetDescription& set, const RecordOptions& records,
                  const ImageListing& listing, const ListedImageSource& source, Examination& examination, int threads,
                  const Ranks& ranks);

// Prints the results of a conversion of images.

// Prints at most ten images of each kind, one a line: first broken and doubtful ones, then those that were encoded
// again. `all_of_them` ends the line that says that there are more.
void print_notes(const ImagesReport& report, const std::string& all_of_them, std::ostream& log);
// Returns a title and a line for each of these images. Returns "" if print_notes() prints all of them.
std::string all_notes(const ImagesReport& report);
// Returns the path of the file of all notes. `out` is --out.
std::string notes_path(const std::string& out);
// The notes replace those of an earlier conversion. Throws Error if a file that this program did not write has their
// name.
void expect_own_notes(const std::string& path);
// `workers` is "2 rank(s) x 8 thread(s)".
void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing,
                   const std::string& workers, std::ostream& log);

// Warns of what is odd about a whole data set: classes without images, the same image twice, reasons that many share.

// Returns "3 (is HEIC, neither a JPEG nor a PNG file), 1 (is empty (0 bytes))", the most frequent ones first.
std::string counted_reasons(const std::vector<ImageNote>& notes);
// Returns what helps against the reasons, with "; " at its end, or "". Commands name the first file of their kind.
std::string advice_on(const std::vector<ImageNote>& broken);

// Names the classes that have no image in a split that has images, and says whether they lost them as broken ones.
void warn_of_empty_classes(const ImageListing& listing, const Examination& examination,
                           const std::vector<SplitPlan>& plans, std::vector<std::string>& warnings);

// Warns of pictures that are nearly black: PNG files of 16 bits that use few of them, arrays of pixels of which none is
// above 15 (masks of 0 and 1 among them), and pictures of zeros.
void warn_of_dark_images(const ImageListing& listing, const Examination& examination, ImagesReport& report);

// Counts images that are stored with the same bytes under another label or in the other split.
void warn_of_same_images(const ImageListing& listing, const Examination& examination,
                         std::vector<std::string>& warnings);

}  // namespace ringtrain
