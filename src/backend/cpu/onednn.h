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
dnnl::stream& onednn_stream();  // one per thread, because two threads must not use a stream at the same time
std::string onednn_version();   // such as "2.6.3"

// Runs a primitive on this thread's stream. Throws std::bad_alloc if memory is missing, otherwise Error. oneDNN's own
// message names neither the library nor the lack of memory.
template <class Primitive, class... Arguments>
void execute(const Primitive& primitive, Arguments&... arguments) {
  try {
    primitive.execute(onednn_stream(), arguments...);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw Error(cat("oneDNN ", onednn_version(), ": ", error.what()));
  }
}

// Sets the number of threads while primitives are made or run. Most primitives remember the number from the time when
// they are made; reorders use the number when they run. Without this class, both would use a thread for each CPU of the
// rank and ignore run.threads. Ranks that share CPUs would then spin, waiting for threads that cannot run yet.
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
