// Finds accesses to memory that streams, events and the host's waits do not order. It keeps a vector clock per stream
// and, for each range of bytes, the streams that read and wrote it last (Lamport 1978; Flanagan and Freund 2009).
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
  // Adds a command of `stream`, for which the commands in `clock` are known to be done. The command becomes number
  // clock[stream] of its stream. Returns "", or a text that names the earlier command that it is not ordered with, and
  // where.
  std::string access(std::size_t stream, const Clock& clock, const std::string& name,
                     const std::vector<Region>& regions);
  // Forgets all accesses to the memory, because it will be used for something else.
  void forget(const void* begin, std::int64_t bytes);

 private:
  struct Use {
    std::size_t stream = 0;
    std::int64_t number = 0;
    std::string name;
  };
  struct Last {
    Use write;               // number 0 means no write
    std::vector<Use> reads;  // the last read of each stream since that write
  };
  using Ranges = std::map<std::uintptr_t, Last>;  // each range ends at the next key
  Ranges::iterator split(std::uintptr_t at);

  Ranges ranges_ = {{0, {}}};
};

}  // namespace ringtrain::cuda
