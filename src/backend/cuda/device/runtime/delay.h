// Keeps a stream busy for a while, so that the host can queue work behind. RuntimeDevice::time() needs this.
//
// The delay is made of copies from page-locked memory. They need no multiprocessor and no kernel of the program. They
// end by themselves, so work that waits for the stream cannot hang.
#pragma once

#include <cuda_runtime_api.h>

namespace ringtrain::cuda {

class Delay {
 public:
  Delay() = default;
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;
  ~Delay() { release(); }
  // Queues copies that take about `seconds` together. The first call takes 4 MiB of memory on the GPU and on the host,
  // and measures how long a copy takes. Throws Error.
  void queue(cudaStream_t stream, double seconds);
  void release();  // ignores errors

 private:
  void start(cudaStream_t stream);
  void copy(cudaStream_t stream);

  void *host_ = nullptr, *device_ = nullptr;
  double copy_seconds_ = 0;
};

}  // namespace ringtrain::cuda
