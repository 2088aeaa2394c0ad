// Helpers that all users of oneDNN share. They compile with oneDNN 2.6 and 3.x.
#pragma once

#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <new>
#include <string>

#include "base/error.h"

namespace ringtrain::cpu {

dnnl::engine& onednn_engine();
dnnl::stream& onednn_stream();  // one per thread: a stream is not to be used by two threads at once
std::string onednn_version();   // "2.6.3"

// Runs a primitive on this thread's stream. oneDNN's own error says neither its name nor that memory was missing. Throws
// std::bad_alloc, or Error.
template <class Primitive, class... Arguments>
void execute(const Primitive& primitive, Arguments&... arguments) {
  try {
    primitive.execute(onednn_stream(), arguments...);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw Error(cat("oneDNN ", onednn_version(), ": ", error.what()));
  }
}

// Most primitives remember the number of threads at the time when they are made, others (reorders) take what there is
// when they run. Without this that would be a thread for each CPU that the rank may use, whatever run.threads says: of
// ranks that share CPUs each would then spin for threads that wait for their turn.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamSize() { omp_set_num_threads(before_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

}  // namespace ringtrain::cpu
