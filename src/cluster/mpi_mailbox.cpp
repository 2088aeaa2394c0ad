#include <algorithm>
#include <exception>
#include <vector>

#include "cluster/fault_tolerance.h"
#include "cluster/mailbox.h"
#include "cluster/rank_group_mpi.h"
#include "cluster/sent_bytes.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t largest_message = std::size_t{1} << 30;  // in bytes, because MPI's counts are ints

struct Transfer {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = 0;
};

class MpiMailbox : public Mailbox {
 public:
  explicit MpiMailbox(const RankGroup& group) : group_(group), comm_(duplicate(group)) {
    if (group.outlives_deaths()) FaultTolerance::end_with_job(comm_);
  }
  ~MpiMailbox() override {
    if (!group_.failed() && !group_.outlives_deaths() && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void send(int to, int tag, std::span<const std::byte> bytes) override {
    std::vector<Transfer> transfers;
    start(transfers, to, tag, bytes);
    wait_for(transfers);
  }
  void start_sending(int to, int tag, std::span<const std::byte> bytes) override { start(sending_, to, tag, bytes); }
  void finish_sending() override {
    wait_for(sending_);
    sending_.clear();
  }
  bool receive(int from, int tag, std::span<std::byte> bytes) override {
    std::vector<Transfer> transfers;
    bool comes = !is_dead(from);
    for (std::size_t at = 0; at < bytes.size() && comes; at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      Transfer& transfer = transfers.emplace_back(MPI_REQUEST_NULL, from);
      comes =
          succeeds(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, from, tag, comm_, &transfer.request),
                   "MPI_Irecv", from);
    }
    return wait_for(transfers) && comes;
  }
  std::optional<int> sender_of_waiting(int tag) override {
    int is_there = 0;
    MPI_Status status;
    const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &is_there, &status);
    if (code != MPI_SUCCESS) {
      learn_of_deaths();  // MPI repeats this error until it is asked for the dead ranks
      if (dead().empty()) check_mpi(code, "MPI_Iprobe");
      return std::nullopt;
    }
    if (!is_there) return std::nullopt;
    waiter_ = {};
    return is_dead(status.MPI_SOURCE) ? living_sender(tag) : status.MPI_SOURCE;
  }
  void pause() override {
    group_.check();
    waiter_.pause();
  }
  const std::vector<int>& dead() const override { return group_.dead(); }
  void note_death(int rank) override { group_.note_death(rank); }

 private:
  bool is_dead(int rank) const { return std::ranges::find(group_.dead(), rank) != group_.dead().end(); }

  // Looks for a message of each living rank. MPI_ANY_SOURCE may find the message of a dead rank first, and that message
  // cannot be received.
  std::optional<int> living_sender(int tag) {
    for (int from = 0; from < size(); ++from) {
      int is_there = 0;
      if (is_dead(from)) continue;
      if (succeeds(MPI_Iprobe(from, tag, comm_, &is_there, MPI_STATUS_IGNORE), "MPI_Iprobe", from) && is_there)
        return from;
    }
    return std::nullopt;
  }

  void learn_of_deaths() {
    if (!group_.outlives_deaths()) return;
    for (const int rank : FaultTolerance::get().find_dead(comm_)) group_.note_death(rank);
  }
  // Returns false if `peer` has died. Throws any other error.
  bool succeeds(int code, const char* call, int peer) {
    if (code == MPI_SUCCESS) return true;
    learn_of_deaths();
    if (!is_dead(peer)) check_mpi(code, call);
    return false;
  }

  void start(std::vector<Transfer>& transfers, int to, int tag, std::span<const std::byte> bytes) {
    if (!is_dead(to)) sent_bytes().by_message += std::ssize(bytes);
    for (std::size_t at = 0; at < bytes.size() && !is_dead(to); at += largest_message) {
      const auto part = bytes.subspan(at, std::min(largest_message, bytes.size() - at));
      Transfer& transfer = transfers.emplace_back(MPI_REQUEST_NULL, to);
      succeeds(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, tag, comm_, &transfer.request),
               "MPI_Isend", to);
    }
  }
  // Waits until all transfers have ended. Returns false if a peer died before its transfer ended.
  bool wait_for(std::vector<Transfer>& transfers) {
    bool whole = true;
    std::size_t ended = 0;
    for (Waiter waiter;; waiter.pause()) {
      for (; ended < transfers.size(); ++ended) {
        int done = 0;
        Transfer& t = transfers[ended];
        if (!succeeds(MPI_Test(&t.request, &done, MPI_STATUS_IGNORE), "MPI_Test", t.peer)) whole = false, done = 1;
        if (!done) break;
      }
      if (ended == transfers.size()) return whole;
      group_.check();
    }
  }

  const RankGroup group_;
  MPI_Comm comm_;
  std::vector<Transfer> sending_;
  Waiter waiter_;
};

}  // namespace

std::unique_ptr<Mailbox> make_mailbox(const RankGroup& group) {
  return std::make_unique<MpiMailbox>(group);
}

}  // namespace ringtrain
