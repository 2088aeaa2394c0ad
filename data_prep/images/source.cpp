#include "data_prep/images/source.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/system_limits.h"
#include "data_prep/common/read_file.h"

namespace ringtrain {
namespace {

constexpr std::int64_t other_files = 256;  // that stay open at the same time

class FileSource : public ListedImageSource {
 public:
  explicit FileSource(const ImageListing& listing)
      : listing_(listing),
        archives_(may_open_files(std::ssize(listing.archives) + other_files) ? listing.archives.size() : 0) {}

  FoundImage read(const ImageItem& item) const override {
    FoundImage found;
    if (!item.problem.empty()) throw Error(item.problem);
    if (item.archive < 0) {
      found.bytes = read_file(listing_.root + item.key);
      return found;
    }
    const std::shared_ptr<const InputFile> archive = open(static_cast<std::size_t>(item.archive));
    if (item.offset + item.bytes > archive->bytes()) throw Error("the tar file ends inside this member");
    found.bytes.resize(item.bytes);
    archive->read(item.offset, found.bytes);
    return found;
  }

 private:
  std::shared_ptr<const InputFile> open(std::size_t archive) const {
    const std::string& path = listing_.archives[archive];
    if (archives_.empty()) return std::make_shared<const InputFile>(path);
    const std::lock_guard<std::mutex> lock(opening_);
    if (!archives_[archive]) archives_[archive] = std::make_shared<const InputFile>(path);
    return archives_[archive];
  }

  const ImageListing& listing_;
  mutable std::mutex opening_;
  mutable std::vector<std::shared_ptr<const InputFile>> archives_;  // open archives; empty: too many to keep open
};

}  // namespace

std::unique_ptr<ListedImageSource> make_file_source(const ImageListing& listing) {
  return std::make_unique<FileSource>(listing);
}

}  // namespace ringtrain
