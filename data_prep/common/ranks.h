// The processes of one conversion: MPI's ranks when mpirun or srun started them, else this one alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

class Ranks {
 public:
  struct Alone {};
  explicit Ranks(Alone) {}
  Ranks();  // MPI_Init if a launcher's variables are set. One per process.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }

  void barrier() const;
  void broadcast(std::string& bytes) const;                         // from rank 0; any length
  std::vector<std::string> gather(const std::string& bytes) const;  // of all ranks in order on rank 0, else empty
  void sum(std::span<std::uint64_t> values) const;                  // over all ranks, on all

  // Ends the other ranks too, which may wait for this one. Does nothing (and returns) without MPI.
  static void abort_job();

 private:
  int rank_ = 0, size_ = 1;
  bool mpi_ = false;
};

}  // namespace ringtrain
