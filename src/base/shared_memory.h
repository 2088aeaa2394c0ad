// Memory that processes of one machine have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ringtrain {

// Zeros at first; a page costs memory when it is touched. It has no name in any file system: the kernel takes it back
// with the last process that uses it, however that process ended.
class SharedMemory {
 public:
  // Of this process alone. Throws Error.
  explicit SharedMemory(std::size_t bytes);
  // For other processes too. Throws Error where the machine does not give it.
  static std::shared_ptr<SharedMemory> make(std::size_t bytes);
  // The memory of another process of the same user and machine, while that process keeps it; `name` and `bytes` are
  // its own. Throws Error where this process cannot see it.
  static std::shared_ptr<SharedMemory> open(const std::string& name, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const std::string& name() const { return name_; }  // "": of this process alone
  std::span<std::uint8_t> bytes() const;

  // Locks for whoever uses the memory: threads and processes. One whose holder died goes to the next who asks: what is
  // written under a lock counts when a mark says so that is set last. Numbers beyond `locks` begin again at 0.
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
