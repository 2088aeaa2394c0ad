#include "data_prep/images/source.h"

#include <sys/resource.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "data_prep/common/read_file.h"

namespace ringtrain {
namespace {

// Returns whether `count` more files can stay open. Raises the limit if needed: the usual 1,024 is only a default.
bool can_keep_open(std::size_t count) {
  constexpr std::size_t others = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur < count + others) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, count + others);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur >= count + others;
}

class FileSource : public ListedImageSource {
 public:
  explicit FileSource(const ImageListing& listing)
      : listing_(listing), archives_(can_keep_open(listing.archives.size()) ? listing.archives.size() : 0) {}

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
