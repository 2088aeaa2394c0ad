#include "cluster/roster.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files.h"

namespace ringtrain {
namespace {

constexpr std::int64_t kBytesOfJob = std::int64_t{1} << 24;  // three bytes for each of five million ranks

// Such a lock belongs to the open file, not to the process. Any thread may use it, and closing another descriptor of
// the same file does not drop it.
struct flock lock_of(short type, std::int64_t begin, std::int64_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;
  lock.l_len = length;
  return lock;
}

}  // namespace

Roster::Roster(const std::string& path, std::uint32_t number, int rank, int ranks)
    : begin_(static_cast<std::int64_t>(number) * kBytesOfJob), rank_(rank), ranks_(ranks) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) {
    const int reason = errno;
    throw Error(cat(path, ": cannot write: ", std::strerror(reason)), advice_for_writing(reason, path));
  }
  hold(Part::alive, true);
  hold(Part::work, true);
}

Roster::~Roster() {
  ::close(file_);
}

std::int64_t Roster::place(Part part, int rank) const {
  return begin_ + static_cast<std::int64_t>(part) * ranks_ + rank;
}

void Roster::hold(Part part, bool held) const {
  struct flock lock = lock_of(held ? F_WRLCK : F_UNLCK, place(part, rank_), 1);
  ::fcntl(file_, F_OFD_SETLK, &lock);
}

bool Roster::is_held(Part part, int rank, int count) const {
  struct flock lock = lock_of(F_WRLCK, place(part, rank), count);
  return ::fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool Roster::is_alive(int rank) const {
  return rank == rank_ || is_held(Part::alive, rank, 1);
}
bool Roster::any_at_work() const {
  return is_held(Part::work, 0, ranks_);
}
void Roster::stop_work() {
  hold(Part::work, false);
}
void Roster::ask_all_to_stop() {
  hold(Part::stop, true);
}

bool Roster::asked_to_stop() const {
  struct flock lock = lock_of(F_WRLCK, place(Part::stop, 0), ranks_);
  return ::fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace ringtrain
