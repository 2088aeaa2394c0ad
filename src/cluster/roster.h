// Tells which ranks of a job still live, and whether one of them was asked to stop. It serves ranks that work in
// different groups and cannot ask each other. Each rank holds locks on bytes of one file that all ranks see. The kernel
// drops these locks when the process ends, for any reason. On a file system without locks all ranks count as alive, and
// no rank learns of requests to stop.
#pragma once

#include <cstdint>
#include <string>

namespace ringtrain {

class Roster {
 public:
  // Opens or makes the file, which jobs share. `number` is the same on all ranks of a job, and unique to it. Throws
  // Error if the file cannot be written. All ranks of the job must make a Roster before one asks for another rank.
  Roster(const std::string& path, std::uint32_t number, int rank, int ranks);
  ~Roster();
  Roster(const Roster&) = delete;
  Roster& operator=(const Roster&) = delete;

  bool is_alive(int rank) const;  // until its process or its Roster ends
  bool any_at_work() const;  // any rank except this one
  void stop_work();          // ends the work of this rank for ever

  // May be called from any thread.
  void ask_all_to_stop();
  bool asked_to_stop() const;  // whether another rank has asked

 private:
  enum class Part { alive, work, stop };
  std::int64_t place(Part part, int rank) const;
  void hold(Part part, bool held) const;
  bool is_held(Part part, int rank, int count) const;  // whether another rank holds it

  std::int64_t begin_;  // where the job's bytes begin
  int rank_, ranks_, file_ = -1;
};

}  // namespace ringtrain
