#include "cluster/mailbox.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "cluster/rank_group_mpi.h"
#include "cluster/sent_bytes.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t largest_message = std::size_t{1} << 30;  // in bytes, because MPI's counts are ints

class MpiMailbox : public Mailbox {
 public:
  explicit MpiMailbox(const RankGroup& group) : group_(group), comm_(duplicate(group)) {}
  ~MpiMailbox() override {
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void send(int to, int tag, std::span<const std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    start(requests, to, tag, bytes);
    wait_for(requests);
  }
  void start_sending(int to, int tag, std::span<const std::byte> bytes) override { start(sending_, to, tag, bytes); }
  void finish_sending() override {
    wait_for(sending_);
    sending_.clear();
  }
  void receive(int from, int tag, std::span<std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    for (std::size_t at = 0; at < bytes.size(); at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      check_mpi(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, from, tag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Irecv");
    }
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
  void start(std::vector<MPI_Request>& requests, int to, int tag, std::span<const std::byte> bytes) {
    sent_bytes().by_message += std::ssize(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      check_mpi(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, tag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    }
  }
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
  MPI_Comm comm_;
  std::vector<MPI_Request> sending_;
  Waiter waiter_;
};

}  // namespace

std::unique_ptr<Mailbox> make_mailbox(const RankGroup& group) {
  return std::make_unique<MpiMailbox>(group);
}

}  // namespace ringtrain
