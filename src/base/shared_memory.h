// Memory that several processes of one machine share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ringtrain {

// The memory starts as zeros. A page uses memory only after it was touched. The memory has no name in any file system.
// The kernel frees it when the last process that uses it ends, even if that process crashed.
class SharedMemory {
 public:
  // Memory of this process alone. Throws Error.
  explicit SharedMemory(std::size_t bytes);
  // Memory that other processes can open. Throws Error if the machine does not provide it.
  static std::shared_ptr<SharedMemory> make(std::size_t bytes);
  // Opens the memory of another process of the same user and machine, while that process keeps it. `name` and `bytes`
  // must be those of the other process. Throws Error if this process cannot see the memory.
  static std::shared_ptr<SharedMemory> open(const std::string& name, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const std::string& name() const { return name_; }  // "": memory of this process alone
  std::span<std::uint8_t> bytes() const;

  // Locks for the threads and processes that use the memory. If the holder of a lock died, the next one who asks gets
  // the lock. So data written under a lock must be treated as valid only if a mark, which is written last, says so.
  // Numbers of `locks` and more are taken modulo `locks`.
  static constexpr std::size_t locks = 64;
  class Lock {
   public:
    Lock(SharedMemory& memory, std::size_t number);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    void* mutex_;
  };

 private:
  SharedMemory(int descriptor, std::size_t bytes, std::string name);
  void make_locks();

  std::size_t size_;
  int descriptor_ = -1;
  std::string name_;
  std::uint8_t* memory_ = nullptr;
};

}  // namespace ringtrain
