// Verifies the images of a data set: verify_image_split() of data_prep/verify.h.
#include "data_prep/verify.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "base/machine_share.h"
#include "base/table.h"
#include "base/utf8.h"
#include "data/hdf5.h"
#include "data/image_dataset.h"
#include "data/jpeg.h"
#include "data/shard_files.h"
#include "data_prep/common/parallel.h"

namespace ringtrain {
namespace {

constexpr std::size_t classes_in_table = 20;
constexpr std::int64_t records_at_once = 1024;  // results of so many records are kept and then listed in order

// Reads one shard as training does.
class ShardReader {
 public:
  explicit ShardReader(const ShardHeader& header)
      : index_(make_dataset_index(header.path, {header})), files_(index_.shards) {}
  ShardReader(const ShardReader&) = delete;

  template <class T>
  std::vector<T> column(const char* name, std::uint64_t address, std::int64_t values) {
    std::vector<T> result(static_cast<std::size_t>(values));
    files_.read_array(0, name, address, std::span(result));
    return result;
  }

  std::vector<std::uint8_t> record(std::size_t number, std::span<const std::uint64_t> offsets) {
    const bool raw = index_.image.raw;
    std::vector<std::uint8_t> bytes(raw ? static_cast<std::size_t>(index_.image.raw_record_bytes())
                                        : offsets[number + 1] - offsets[number]);
    read_image_record(files_, index_, 0, number, raw ? 0 : offsets[number], bytes);
    return bytes;
  }

 private:
  const DatasetIndex index_;
  ShardFiles files_;
};

struct Columns {
  std::vector<std::int32_t> labels, shapes;
  std::vector<std::uint64_t> sample_ids, offsets;
  std::vector<std::uint32_t> crc32c;  // empty: the file has none

  Columns(ShardReader& reader, const ShardHeader& header) {
    const std::int64_t n = header.count;
    const ImageArrays& arrays = header.arrays;
    labels = reader.column<std::int32_t>("labels", arrays.labels, n);
    shapes = reader.column<std::int32_t>("shapes", arrays.shapes, 3 * n);
    sample_ids = reader.column<std::uint64_t>("sample_ids", arrays.sample_ids, n);
    if (!header.image.raw) offsets = reader.column<std::uint64_t>("offsets", arrays.offsets, n + 1);
    if (arrays.has_crc32c) crc32c = reader.column<std::uint32_t>("crc32c", arrays.crc32c, n);
  }
};

// The faults of one record. An empty string means no fault.
struct RecordFaults {
  std::string checksum, image;
};

RecordFaults check_record(const ShardHeader& header, const Columns& columns, std::size_t r,
                          std::span<const std::uint8_t> bytes, ImageSplitFacts::Content& content) {
  RecordFaults faults;
  content.crc32c = crc32c(bytes);
  content.bytes = bytes.size();
  if (!columns.crc32c.empty() && content.crc32c != columns.crc32c[r]) faults.checksum = "has a wrong CRC-32C";
  const std::span<const std::int32_t, 3> stored(columns.shapes.data() + 3 * r, 3);
  if (header.image.raw) {
    const std::array<std::int64_t, 3> pixels = {header.image.height, header.image.width, header.image.channels};
    faults.image = shape_fault(pixels, stored);
    return faults;
  }
  try {
    faults.image = shape_fault(check_jpeg(bytes), stored);
  } catch (const Error& error) {
    faults.image = cat("does not decode: ", error.what());
  }
  return faults;
}

void verify_shard(const ShardHeader& header, std::uint32_t shard, ImageSplitFacts& facts,
                  std::vector<std::int64_t>& class_sizes, Verification& result) {
  const h5::File file = h5::File::open(header.path);
  ShardReader reader(header);
  const Columns columns(reader, header);
  if (columns.crc32c.empty()) result.summary.push_back(cat("warning: ", header.path, ": has no checksums (crc32c)"));
  FaultList checksums(result, header.path), images(result, header.path), labels(result, header.path);
  if (file.has("keys") && (file.type("keys") != "string" || file.shape("keys") != h5::Shape{header.count}))
    images.add(cat("data set 'keys' is not ", header.count, " strings"));
  if (file.has("keys")) h5::expect_stored(file, "keys");
  for (std::size_t r = 0; r < columns.labels.size(); ++r) {
    const std::int32_t label = columns.labels[r];
    if (label >= 0 && label < header.image.num_classes()) {
      ++class_sizes[static_cast<std::size_t>(label)];
    } else {
      labels.add(
          cat("record ", r, " has the label ", label, ", but there are ", header.image.num_classes(), " classes"));
    }
  }
  facts.sample_ids.insert(facts.sample_ids.end(), columns.sample_ids.begin(), columns.sample_ids.end());
  for (std::int64_t first = 0; first < header.count; first += records_at_once) {
    const std::int64_t count = std::min(records_at_once, header.count - first);
    std::vector<RecordFaults> faults(static_cast<std::size_t>(count));
    std::vector<ImageSplitFacts::Content> contents(static_cast<std::size_t>(count));
    parallel_for(count, usable_cpus(), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i), r = static_cast<std::size_t>(first + i);
      contents[at].shard = shard;
      contents[at].record = static_cast<std::uint32_t>(r);
      faults[at] = check_record(header, columns, r, reader.record(r, columns.offsets), contents[at]);
    });
    for (std::int64_t i = 0; i < count; ++i) {
      const RecordFaults& fault = faults[static_cast<std::size_t>(i)];
      if (!fault.checksum.empty()) checksums.add(cat("record ", first + i, " of 'images' ", fault.checksum));
      if (!fault.image.empty()) images.add(cat("record ", first + i, " of 'images' ", fault.image));
    }
    facts.contents.insert(facts.contents.end(), contents.begin(), contents.end());
  }
}

// Finds classes whose ids or names differ only in Unicode's form: "é" can be one symbol, or "e" and an accent. "":
// none.
std::string two_forms(const ImageFormat& image) {
  for (const std::vector<std::string>& texts : {image.class_ids, image.class_names}) {
    std::map<std::string, std::size_t> known;  // composed text -> class
    for (std::size_t k = 0; k < texts.size(); ++k) {
      if (find_invalid_utf8(texts[k]) != std::string::npos) continue;
      const auto [first, is_new] = known.try_emplace(composed(texts[k]), k);
      if (!is_new && texts[first->second] != texts[k])
        return cat("classes ", first->second, " and ", k, " are both called '", texts[k],
                   "', once in Unicode's composed form (NFC) and once decomposed (NFD): if they are one class, give ",
                   "their folders one name and convert again");
    }
  }
  return "";
}

void summarise(const std::string& prefix, const std::vector<ShardHeader>& headers, const ImageSplitFacts& facts,
               const std::vector<std::int64_t>& sizes, Verification& result) {
  const ShardHeader& first = headers[0];
  const ImageFormat& image = first.image;
  std::uint64_t bytes = 0;
  for (const ImageSplitFacts::Content& content : facts.contents) bytes += content.bytes;
  result.summary.push_back(
      cat(prefix, ": ", with_thousands(static_cast<long long>(facts.contents.size())), " images in ", headers.size(),
          " file(s), ", readable_bytes(bytes), " of ",
          image.raw ? cat("pixels ", image.height, " x ", image.width, " x ", image.channels) : "JPEG", ", ",
          sizes.size(), " classes"));
  const auto name = [&](std::size_t k) {
    return image.class_names[k] == image.class_ids[k] ? image.class_names[k]
                                                      : cat(image.class_ids[k], " ", image.class_names[k]);
  };
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  result.summary.push_back(
      cat("  images per class: ", *least, " (", name(static_cast<std::size_t>(least - sizes.begin())), ") to ", *most,
          " (", name(static_cast<std::size_t>(most - sizes.begin())), "), mean ",
          printed("%.1f", static_cast<double>(facts.contents.size()) / static_cast<double>(sizes.size()))));
  std::vector<std::string> empty;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (sizes.size() <= classes_in_table) result.summary.push_back(cat("  ", with_thousands(sizes[k]), "\t", name(k)));
    if (sizes[k] == 0) empty.push_back(name(k));
  }
  if (!empty.empty())
    result.summary.push_back(
        cat("  warning: ", empty.size(), " class(es) without images: ", first_names(empty, classes_in_table)));
}

}  // namespace

ImageSplitFacts verify_image_split(const std::string& prefix, const std::vector<ShardHeader>& headers, bool whole,
                                   Verification& result) {
  ImageSplitFacts facts;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(headers[0].image.num_classes()));
  for (std::size_t shard = 0; shard < headers.size(); ++shard)
    verify_shard(headers[shard], static_cast<std::uint32_t>(shard), facts, sizes, result);
  sort_and_check_ids(prefix, facts.sample_ids, result);
  std::map<std::string, std::size_t> ids;
  for (const std::string& id : headers[0].image.class_ids) {
    if (++ids[id] == 2) result.faults.push_back(cat(headers[0].path, ": class id '", id, "' occurs more than once"));
  }
  if (const std::string twice = two_forms(headers[0].image); !twice.empty())
    result.summary.push_back(cat("warning: ", prefix, ": ", twice));
  summarise(prefix, headers, facts, sizes, result);
  if (!whole)
    result.summary.push_back(cat("  one of ", headers[0].num_shards, " files; the others were not looked at"));
  return facts;
}

void compare_image_splits(const std::vector<ShardHeader>& train, const ImageSplitFacts& train_facts,
                          const std::vector<ShardHeader>& validation, const ImageSplitFacts& validation_facts,
                          Verification& result) {
  const ShardHeader &a = train[0], &b = validation[0];
  if (a.dataset_uuid != b.dataset_uuid)
    result.summary.push_back(cat(b.path, " and ", a.path, " come from two conversions (dataset_uuid), ",
                                 a.image.class_ids == b.image.class_ids
                                     ? "with the same classes: right if both were given one class list"
                                     : "with different classes"));
  if (a.image.class_ids != b.image.class_ids)
    result.faults.push_back(
        cat(b.path, ": data set 'class_ids' differs from that of ", a.path, ": labels mean different classes"));
  std::vector<std::uint64_t> common;
  std::set_intersection(train_facts.sample_ids.begin(), train_facts.sample_ids.end(),
                        validation_facts.sample_ids.begin(), validation_facts.sample_ids.end(),
                        std::back_inserter(common));
  if (!common.empty())
    result.faults.push_back(
        cat(b.path, ": ", common.size(), " sample id(s), such as ", common[0], ", are also in the training split"));

  using Content = ImageSplitFacts::Content;
  std::vector<Content> sorted = train_facts.contents;
  const auto before = [](const Content& x, const Content& y) {
    return std::tie(x.crc32c, x.bytes) < std::tie(y.crc32c, y.bytes);
  };
  std::sort(sorted.begin(), sorted.end(), before);
  std::size_t same = 0;
  std::string example;
  for (const Content& content : validation_facts.contents) {
    const auto match = std::lower_bound(sorted.begin(), sorted.end(), content, before);
    if (match == sorted.end() || before(content, *match)) continue;
    if (same++ == 0)
      example = cat("record ", content.record, " of ", validation[content.shard].path, " and record ", match->record,
                    " of ", train[match->shard].path);
  }
  if (same > 0)
    result.summary.push_back(
        cat("warning: ", same, " image(s) are in both splits (same length and CRC-32C), such as ", example));
}

}  // namespace ringtrain
