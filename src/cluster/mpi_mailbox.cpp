#include <algorithm>
#include <vector>

#include "cluster/mailbox.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t largest_message = std::size_t{1} << 30;  // MPI counts in int

class MpiMailbox : public Mailbox {
 public:
  explicit MpiMailbox(const RankGroup& group) : group_(group), comm_(duplicate(group)) {}
  ~MpiMailbox() override {
    if (!group_.failed() && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void send(int to, int tag, std::span<const std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    post(bytes, [&](std::span<const std::byte> part) {
      check_mpi(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, tag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    });
    wait_for(requests);
  }
  void start_sending(int to, int tag, std::span<const std::byte> bytes) override {
    post(bytes, [&](std::span<const std::byte> part) {
      check_mpi(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, tag, comm_,
                          &sending_.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    });
  }
  void finish_sending() override {
    wait_for(sending_);
    sending_.clear();
  }
  void receive(int from, int tag, std::span<std::byte> bytes) override {
    std::vector<MPI_Request> requests;
    post(bytes, [&](std::span<std::byte> part) {
      check_mpi(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, from, tag, comm_,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Irecv");
    });
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
  void pause() override {
    group_.check();
    waiter_.pause();
  }

 private:
  template <class Byte, class Post>
  static void post(std::span<Byte> bytes, const Post& one) {
    for (std::size_t at = 0; at < bytes.size(); at += largest_message)
      one(bytes.subspan(at, std::min(largest_message, bytes.size() - at)));
  }
  void wait_for(std::vector<MPI_Request>& requests) {
    for (Waiter waiter;; waiter.pause()) {
      int done = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
                "MPI_Testall");
      if (done) return;
      group_.check();
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
