// Running text into a data set of characters; its last part is the validation split.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace ringtrain {

struct TextOptions {
  std::string input;                 // "-": standard input
  std::string out;                   // prefix; "-train" and "-validation" are appended
  std::string alphabet = "auto";     // "auto": UTF-8 symbols; "bytes": any bytes
  std::optional<double> validation;  // share at the end of the text; unset: 0.05, or none if the text is too short
  std::int64_t shards = 2;
  std::uint64_t seed = 1;
  bool force = false;
  std::string license = "unknown";
};

struct TextReport {
  std::int64_t train_characters = 0, validation_characters = 0, vocabulary = 0;
  std::string dataset_uuid;
};

// The whole conversion. `log` receives what a user wants to know. With "auto" a byte-order mark is dropped and Windows
// line ends become "\n"; with "bytes" the text stays as it is.
TextReport convert_text(const TextOptions& options, std::ostream& log);

}  // namespace ringtrain
