// A fuzz target: one way into the program for bytes that others made. The same targets run under libFuzzer (driver.cpp)
// and over the stored inputs in the unit tests (tests/unit/fuzz_inputs_test.cpp).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ringtrain::fuzz {

// Reads `input` as the program would. ringtrain::Error may leave it, nothing else; a broken promise goes to expect().
using Read = void (*)(std::string_view input);

// All targets by name; a file in targets/ adds its own.
std::map<std::string, Read>& targets();

// Makes an input's own checksums right again (repair.h). The fuzzer calls it after most mutations.
using Repair = std::string (*)(std::string_view input);
std::map<std::string, Repair>& repairs();  // of the targets that have one

struct Registered {
  Registered(const char* name, Read read, Repair repair = nullptr) {
    targets()[name] = read;
    if (repair != nullptr) repairs()[name] = repair;
  }
};

// Throws std::logic_error naming the promise that the program broke.
void expect(bool kept, const std::string& promise);

// Runs a target. An Error must be one clear message: not empty, and at most `longest_message` bytes with its
// hint. Throws std::logic_error where it is not; lets
// everything but Error through. Returns the message; "": there was none.
inline constexpr std::size_t longest_message = 4000;
std::string run(Read read, std::string_view input);

// The error of `action`, with its hint; "" where it throws none. For targets that go on after one.
std::string error_of(const std::function<void()>& action);

// A file of a folder of this process in memory (/dev/shm, or the folder of temporary files); both are replaced and
// removed again. "a.csv" -> its whole path.
std::string in_folder(const std::string& name);
std::string write_input(const std::string& name, std::string_view bytes);

// A line of its own begins each part but the first: "==== overrides". Without such a line `second` is empty.
struct Parts {
  std::string_view first, second;
};
Parts split_parts(std::string_view input);

// Numbers, texts and choices taken from the front of an input; zeros after its end.
class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t byte();
  std::uint64_t word(int bytes = 8);   // little-endian
  std::string text(std::size_t most);  // up to and without a line end, which is passed over
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace ringtrain::fuzz
