// The processes of one conversion: the ranks of MPI if mpirun or srun started them, otherwise this process alone.
//
// A conversion makes one object of Ranks and gives it to its parts. Rank 0 prints, and renames the files at the end. It
// also lists the images of folders, and the other ranks get this list by broadcast(). In an import of arrays, every
// rank makes the list itself. All ranks do their share of the images and files. Without a launcher MPI is not started,
// so a conversion also runs on login nodes where MPI cannot start. barrier(), broadcast(), gather() and sum() are
// collective: every rank must call them in the same order.
//
// The last functions say what a process leaves when a signal stops it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/machine_share.h"

namespace ringtrain {

class Ranks {
 public:
  struct Alone {};
  explicit Ranks(Alone) {}
  // Starts MPI if a launcher's variables are set. Make one object per process. Throws Error on rank 0 if the launcher
  // has started several processes and MPI cannot bring them together.
  Ranks();
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }
  // Returns the CPUs of this rank's affinity mask, or fewer if a quota of CPU time allows fewer. The ranks of a node
  // divide a quota that they share.
  int threads() const { return threads_; }

  void barrier() const;
  void broadcast(std::string& bytes) const;                         // from rank 0; any length
  std::vector<std::string> gather(const std::string& bytes) const;  // rank 0: one per rank, in order; others: empty
  void sum(std::span<std::uint64_t> values) const;                  // over all ranks; every rank gets the sums

  // Many errors occur on all ranks at once, and should be printed once. So a rank other than 0 waits here for 2
  // seconds. If rank 0 has the same error, it ends this rank meanwhile. Without MPI it returns at once.
  static void leave_report_to_first();

  // Ends the other ranks too, since they may wait for this one. Without MPI it does nothing and returns.
  static void abort_job();

 private:
  int rank_ = 0, size_ = 1, threads_ = usable_cpus();
  bool mpi_ = false;
};

// Removes temporary files and locks when a signal stops the program: SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1 and
// SIGUSR2, which launchers and Slurm send.

// After this call, such a signal removes the files of remove_if_stopped(), prints one line (rank 0 does), and ends the
// process with the exit code 128 + signal. A signal that is ignored (nohup) stays ignored. Call it first in main().
void clean_up_when_stopped();

// A file that is going to be made, or a folder, which is removed if it is empty. May be called from any thread. After a
// signal, it does not return, so that no file appears after the others have been removed.
void remove_if_stopped(const std::string& path);
// The file is gone, or is to stay.
void keep_if_stopped(const std::string& path);

}  // namespace ringtrain
