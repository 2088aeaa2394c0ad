#include "data_prep/images/convert.h"

#include <filesystem>

#include "base/error.h"
#include "data_prep/common/parallel.h"

namespace ringtrain {
namespace {

void check(const ImagesOptions& options) {
  check_image_options(options);
  check_split_options(options);
  if (!options.split.empty() && (options.validation.value_or(0) > 0 || !options.validation_list.empty()))
    throw Error("--split makes one split; it goes with neither --validation nor --validation-list");
}

std::string name_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

ImagesReport convert_images(const ImagesOptions& options, const Ranks& ranks, std::ostream& log) {
  check(options);
  const std::unique_ptr<OutputFiles> files = make_output_files(options, ranks);
  ImageListing listing;
  const int threads = options.threads > 0 ? static_cast<int>(options.threads) : ranks.threads();
  std::string message;
  if (ranks.first()) {
    listing = list_images(options, threads);
    if (ranks.size() > 1) message = listing.serialize();
  }
  ranks.broadcast(message);
  if (!ranks.first()) listing = ImageListing::deserialize(message);
  const std::unique_ptr<ListedImageSource> source = make_file_source(listing);
  return convert_listing(options, record_options(options), listing, *source, name_of(options.input), files.get(), ranks,
                         log);
}

}  // namespace ringtrain
