#include "data_prep/text/alphabet.h"

#include "base/error.h"
#include "base/utf8.h"
#include "data/dataset.h"

namespace ringtrain {

Alphabet::Alphabet(std::string name, std::vector<std::string> vocabulary, std::size_t reserved, bool bytes)
    : name_(std::move(name)), vocabulary_(std::move(vocabulary)), bytes_(bytes) {
  if (std::ssize(vocabulary_) > largest_vocabulary)
    throw Error(cat("an alphabet of ", vocabulary_.size(), " symbols, expected at most ", largest_vocabulary));
  small_.fill(-1);
  for (std::size_t id = reserved; id < vocabulary_.size(); ++id) {
    const std::string& symbol = vocabulary_[id];
    const std::uint32_t code = bytes_ ? static_cast<unsigned char>(symbol[0]) : decode_symbol(symbol);
    if (code < small_.size()) {
      small_[code] = static_cast<std::int16_t>(id);
    } else {
      large_[code] = static_cast<std::uint8_t>(id);
    }
  }
}

Alphabet Alphabet::study31() {
  std::vector<std::string> vocabulary = {"*", "+"};
  for (char c = 'a'; c <= 'z'; ++c) vocabulary.emplace_back(1, c);
  for (const char* symbol : {"-", ".", " "}) vocabulary.emplace_back(symbol);
  return {"study31", vocabulary, 2};
}

Alphabet Alphabet::of_names(const std::map<std::uint32_t, std::uint64_t>& symbol_counts) {
  std::vector<std::string> vocabulary = {"<blank>", "<stop>"};
  for (const auto& [code, count] : symbol_counts) vocabulary.push_back(encode_symbol(code));
  return {"auto", vocabulary, 2};
}

bool Alphabet::encode(std::string_view text, std::vector<std::uint8_t>& ids) const {
  const std::size_t before = ids.size();
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = bytes_ ? 1 : symbol_length(text.substr(i));
    const std::uint32_t code = bytes_        ? static_cast<unsigned char>(text[i])
                               : length == 0 ? ~std::uint32_t{0}
                                             : decode_symbol(text.substr(i, length));
    std::int32_t id = -1;
    if (code < small_.size()) {
      id = small_[code];
    } else if (const auto found = large_.find(code); found != large_.end()) {
      id = found->second;
    }
    if (id < 0) {
      ids.resize(before);
      return false;
    }
    ids.push_back(static_cast<std::uint8_t>(id));
    i += length;
  }
  return true;
}

bool fits_study31(std::string_view name) {
  for (const char c : name) {
    if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == ' ' || c == '.' || c == '-')) return false;
  }
  return true;
}

}  // namespace ringtrain
