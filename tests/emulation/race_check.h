// The order that streams, events and the host's waits guarantee, and accesses to memory that it leaves unordered: a
// vector clock per stream and, per byte range, who read and wrote it last (Lamport 1978; Flanagan and Freund 2009).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ringtrain::cuda {

// Bytes that a command reads or writes.
struct Region {
  const void* begin = nullptr;
  std::int64_t bytes = 0;
  bool write = false;
};

// How many commands of each stream are known to be done.
using Clock = std::vector<std::int64_t>;
void join(Clock& clock, const Clock& other);

class RaceCheck {
 public:
  // A command of `stream`, which knows of `clock`; it becomes number clock[stream] of its stream. Returns "" or which
  // earlier command it is not ordered with, and where.
  std::string access(std::size_t stream, const Clock& clock, const std::string& name,
                     const std::vector<Region>& regions);
  // The memory is somebody else's from now on.
  void forget(const void* begin, std::int64_t bytes);

 private:
  struct Use {
    std::size_t stream = 0;
    std::int64_t number = 0;
    std::string name;
  };
  struct Last {
    Use write;               // number 0: none
    std::vector<Use> reads;  // since that write, the last of each stream
  };
  using Ranges = std::map<std::uintptr_t, Last>;  // each holds up to the next key
  Ranges::iterator split(std::uintptr_t at);

  Ranges ranges_ = {{0, {}}};
};

}  // namespace ringtrain::cuda
