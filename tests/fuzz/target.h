// A fuzz target is one way into the program for bytes from outside. libFuzzer runs the targets (driver.cpp), and unit
// tests run them over the stored inputs (tests/unit/fuzz_inputs_test.cpp).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ringtrain::fuzz {

// Reads `input` as the program would. It may throw ringtrain::Error and nothing else. It calls expect() to check what
// the program promises.
using Read = void (*)(std::string_view input);

// All targets by name. Each file in targets/ adds its own.
std::map<std::string, Read>& targets();

// Corrects the checksums in an input (repair.h). The fuzzer calls it after most mutations.
using Repair = std::string (*)(std::string_view input);
std::map<std::string, Repair>& repairs();  // only targets with a repair

struct Registered {
  Registered(const char* name, Read read, Repair repair = nullptr) {
    targets()[name] = read;
    if (repair != nullptr) repairs()[name] = repair;
  }
};

// Throws std::logic_error with the name of the promise if `kept` is false.
void expect(bool kept, const std::string& promise);

// Runs a target and returns the message of its Error, or "" if there was none. The message must not be empty, and it
// may have at most `longest_message` bytes with its hint. Otherwise throws std::logic_error. Exceptions other than
// Error pass through.
inline constexpr std::size_t longest_message = 4000;
std::string run(Read read, std::string_view input);

// Returns the error of `action` with its hint, or "" if it throws none. Targets that go on after an error use it.
std::string error_of(const std::function<void()>& action);

// in_folder() returns the path of a file in a folder of this process, which lies in memory (/dev/shm) or in the folder
// of temporary files. write_input() writes such a file. Files are replaced by later ones, and the folder is removed at
// the end.
std::string in_folder(const std::string& name);
std::string write_input(const std::string& name, std::string_view bytes);

// An input of two parts. The second part begins after the line "==== overrides". Without such a line, `second` is
// empty.
struct Parts {
  std::string_view first, second;
};
Parts split_parts(std::string_view input);

// Takes numbers, texts and choices from the front of an input. After the end of the input it gives zeros.
class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t byte();
  std::uint64_t word(int bytes = 8);   // little-endian
  std::string text(std::size_t most);  // up to a line end, which is skipped
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace ringtrain::fuzz
