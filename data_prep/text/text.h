// Converts running text into a data set of characters. The last part of the text is the validation split.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "data_prep/common/shard_writer.h"

namespace ringtrain {

// The share for validation is the end of the text. Unset: 0.05, or none if it is too short.
struct TextOptions : FileOptions {
  std::string input;              // "-": standard input
  std::string alphabet = "auto";  // "auto": UTF-8 symbols; "bytes": bytes; at most 254 different ones
};

struct TextReport {
  std::int64_t train_characters = 0, validation_characters = 0, vocabulary = 0;
  std::string dataset_uuid;
};

// Runs the whole conversion. `log` gets the messages for the user. With "auto", letters get Unicode's composed
// form (NFC), byte-order marks are dropped, and line ends become "\n"; `log` says how many. With "bytes", the text
// stays as it is.
TextReport convert_text(const TextOptions& options, std::ostream& log);

}  // namespace ringtrain
