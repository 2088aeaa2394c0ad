#include "cluster/links.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/mpi_calls.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 30;  // bytes per MPI message, because MPI's counts are ints

// Posts the MPI messages of some bytes, and appends their requests.
void send_in_parts(std::vector<MPI_Request>& requests, MPI_Comm comm, std::span<const std::byte> bytes, int to,
                   int tag) {
  for (std::size_t at = 0; at < bytes.size(); at += kLongest)
    post_send(comm, bytes.subspan(at, std::min(kLongest, bytes.size() - at)), to, tag,
              requests.emplace_back(MPI_REQUEST_NULL));
}
void receive_in_parts(std::vector<MPI_Request>& requests, MPI_Comm comm, std::span<std::byte> bytes, int from,
                      int tag) {
  for (std::size_t at = 0; at < bytes.size(); at += kLongest)
    post_receive(comm, bytes.subspan(at, std::min(kLongest, bytes.size() - at)), from, tag,
                 requests.emplace_back(MPI_REQUEST_NULL));
}

struct MpiMessage final : Pending {
  bool done() override { return all_done(requests); }
  std::vector<MPI_Request> requests;
};

class HostWaitTimer final : public WaitTimer {
 public:
  void time(const std::function<void()>& wait) override {
    const double begin = now_seconds();
    wait();
    seconds_ += now_seconds() - begin;
  }
  double take_seconds() override { return std::exchange(seconds_, 0); }

 private:
  double seconds_ = 0;
};

class MpiLinks : public Links {
 public:
  explicit MpiLinks(const RankGroup& group) : comm_(duplicate(group)) {}
  std::byte* allocate(std::int64_t bytes) override { return new std::byte[static_cast<std::size_t>(bytes)]; }
  // After an error, a late message may still arrive. The memory is then not freed.
  void release(std::byte* memory) override {
    if (std::uncaught_exceptions() == 0) delete[] memory;
  }

  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to, int tag) override {
    auto message = std::make_unique<MpiMessage>();
    send_in_parts(message->requests, comm_, bytes, to, tag);
    return message;
  }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from, int tag) override {
    auto message = std::make_unique<MpiMessage>();
    receive_in_parts(message->requests, comm_, bytes, from, tag);
    return message;
  }
  std::unique_ptr<WaitTimer> make_timer() override { return std::make_unique<HostWaitTimer>(); }

 private:
  OwnComm comm_;
};

class MpiMailbox : public Mailbox {
 public:
  explicit MpiMailbox(const RankGroup& group) : group_(group), comm_(duplicate(group)) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void send(int to, int tag, std::span<const std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    send_in_parts(requests, comm_, bytes, to, tag);
    wait_for(requests);
  }
  void start_sending(int to, int tag, std::span<const std::byte> bytes) override {
    send_in_parts(sending_, comm_, bytes, to, tag);
  }
  void finish_sending() override {
    wait_for(sending_);
    sending_.clear();
  }
  void receive(int from, int tag, std::span<std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    receive_in_parts(requests, comm_, bytes, from, tag);
    wait_for(requests);
  }
  std::optional<int> sender_of_waiting(int tag) override {
    int is_there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &is_there, &status), "MPI_Iprobe");
    if (!is_there) return std::nullopt;
    waiter_ = {};
    return status.MPI_SOURCE;
  }
  void pause() override { waiter_.pause(); }

 private:
  void wait_for(std::vector<MPI_Request>& requests) {
    std::size_t ended = 0;
    for (Waiter waiter;; waiter.pause()) {
      for (; ended < requests.size(); ++ended) {
        int done = 0;
        check_mpi(MPI_Test(&requests[ended], &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (!done) break;
      }
      if (ended == requests.size()) return;
    }
  }

  const RankGroup group_;
  OwnComm comm_;
  std::vector<MPI_Request> sending_;
  Waiter waiter_;
};

}  // namespace

std::unique_ptr<Links> make_links(const RankGroup& group) {
  return std::make_unique<MpiLinks>(group);
}

std::unique_ptr<Mailbox> make_mailbox(const RankGroup& group) {
  return std::make_unique<MpiMailbox>(group);
}

}  // namespace ringtrain
