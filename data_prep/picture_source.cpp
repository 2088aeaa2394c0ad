#include "data_prep/picture_source.h"

#include <mutex>

#include "base/error.h"
#include "data_prep/read_file.h"

namespace ringtrain {
namespace {

class FileSource : public PictureSource {
 public:
  explicit FileSource(const PictureListing& listing) : listing_(listing), archives_(listing.archives.size()) {}

  FoundPicture read(const PictureItem& item) const override {
    FoundPicture found;
    if (item.archive < 0) {
      found.bytes = read_file(listing_.root + item.key);
      return found;
    }
    const InputFile& archive = open(static_cast<std::size_t>(item.archive));
    if (item.offset + item.bytes > archive.bytes()) throw Error("the tar file ends inside it");
    found.bytes.resize(item.bytes);
    archive.read(item.offset, found.bytes);
    return found;
  }

 private:
  const InputFile& open(std::size_t archive) const {
    const std::lock_guard<std::mutex> lock(opening_);
    if (!archives_[archive])
      archives_[archive] = std::make_unique<InputFile>(listing_.root + listing_.archives[archive]);
    return *archives_[archive];
  }

  const PictureListing& listing_;
  mutable std::mutex opening_;
  mutable std::vector<std::unique_ptr<InputFile>> archives_;  // stay open: a thousand classes are a thousand files
};

}  // namespace

std::unique_ptr<PictureSource> make_file_source(const PictureListing& listing) {
  return std::make_unique<FileSource>(listing);
}

}  // namespace ringtrain
