// Symbols and their ids: how text becomes the bytes of `tokens`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ringtrain {

class Alphabet {
 public:
  Alphabet() = default;
  // `vocabulary` has the symbol of each id. A symbol is one code point, or one byte if `bytes` is true. The first
  // `reserved` entries (blank and stop) are names, and stand for no symbol of the text.
  Alphabet(std::string name, std::vector<std::string> vocabulary, std::size_t reserved, bool bytes = false);

  // The 31 symbols of the pet-name study: '*' (blank), '+' (stop), a-z, '-', '.', space.
  static Alphabet study31();
  // An alphabet for names in any language: "<blank>", "<stop>", then the given symbols, sorted by code point.
  static Alphabet of_names(const std::map<std::uint32_t, std::uint64_t>& symbol_counts);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }

  // Appends the ids of `text` to `ids`. Returns false, and appends nothing, if a symbol is not in the alphabet.
  bool encode(std::string_view text, std::vector<std::uint8_t>& ids) const;

 private:
  std::string name_;
  std::vector<std::string> vocabulary_;
  bool bytes_ = false;
  std::array<std::int16_t, 256> small_{};  // ids of code points (or bytes) below 256; -1: none
  std::unordered_map<std::uint32_t, std::uint8_t> large_;
};

// Returns whether every symbol is one of the study's before lower-casing: [A-Za-z .-].
bool fits_study31(std::string_view name);

}  // namespace ringtrain
