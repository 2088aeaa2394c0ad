#include "base/shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ringtrain {
namespace {

// The locks take the first page of the memory. The data begin at this byte.
constexpr std::size_t first_byte = 4096;
static_assert(SharedMemory::locks * sizeof(pthread_mutex_t) <= first_byte);

// The kernel's name for the memory's file. Every process sees it, so a process can recognise the memory of another
// rank.
constexpr const char* file_name = "ringtrain-data";

std::uint8_t* map(std::size_t bytes, int flags, int descriptor) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, descriptor, 0);
  if (memory == MAP_FAILED) throw Error(cat("cannot map ", bytes, " bytes of memory: ", std::strerror(errno)));
  return static_cast<std::uint8_t*>(memory);
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes)
    : size_(first_byte + bytes), memory_(map(size_, MAP_PRIVATE | MAP_ANONYMOUS, -1)) {
  make_locks();
}

SharedMemory::SharedMemory(int descriptor, std::size_t bytes, std::string name)
    : size_(first_byte + bytes), descriptor_(descriptor), name_(std::move(name)) {
  try {
    memory_ = map(size_, MAP_SHARED, descriptor);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

std::shared_ptr<SharedMemory> SharedMemory::make(std::size_t bytes) {
  const int descriptor = ::memfd_create(file_name, MFD_CLOEXEC);
  if (descriptor < 0) throw Error(cat("memfd_create: ", std::strerror(errno)));
  if (::ftruncate(descriptor, static_cast<off_t>(first_byte + bytes)) != 0) {
    const int reason = errno;
    ::close(descriptor);
    throw Error(cat("memory of ", first_byte + bytes, " bytes: ", std::strerror(reason)));
  }
  std::shared_ptr<SharedMemory> made(
      new SharedMemory(descriptor, bytes, cat("/proc/", ::getpid(), "/fd/", descriptor)));
  made->make_locks();
  return made;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const std::string& name, std::size_t bytes) {
  char target[64] = "";
  if (::readlink(name.c_str(), target, sizeof target - 1) < 0)
    throw Error(cat("cannot see ", name, ": ", std::strerror(errno)));
  // In a container, the same process number can mean another process. Then `name` leads to another file.
  if (!std::string(target).starts_with(cat("/memfd:", file_name)))
    throw Error(cat(name, " is ", target, ", not the memory of another rank"));
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw Error(cat("cannot open ", name, ": ", std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || static_cast<std::size_t>(status.st_size) != first_byte + bytes) {
    ::close(descriptor);
    throw Error(cat(name, " has ", status.st_size, " bytes, expected ", first_byte + bytes));
  }
  std::shared_ptr<SharedMemory> opened(new SharedMemory(descriptor, bytes, name));
  ::close(std::exchange(opened->descriptor_, -1));  // the mapping stays; a process may map the memory of many ranks
  return opened;
}

SharedMemory::~SharedMemory() {
  ::munmap(memory_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::span<std::uint8_t> SharedMemory::bytes() const {
  return {memory_ + first_byte, size_ - first_byte};
}

void SharedMemory::make_locks() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (std::size_t i = 0; i < locks; ++i)
    pthread_mutex_init(reinterpret_cast<pthread_mutex_t*>(memory_) + i, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

SharedMemory::Lock::Lock(SharedMemory& memory, std::size_t number)
    : mutex_(reinterpret_cast<pthread_mutex_t*>(memory.memory_) + number % locks) {
  auto* mutex = static_cast<pthread_mutex_t*>(mutex_);
  const int result = pthread_mutex_lock(mutex);
  if (result == EOWNERDEAD) {
    pthread_mutex_consistent(mutex);
  } else if (result != 0) {
    throw Error(cat("cannot take a lock in shared memory: ", std::strerror(result)));
  }
}

SharedMemory::Lock::~Lock() {
  pthread_mutex_unlock(static_cast<pthread_mutex_t*>(mutex_));
}

}  // namespace ringtrain
