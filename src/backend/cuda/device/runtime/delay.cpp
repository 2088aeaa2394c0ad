#include "backend/cuda/device/runtime/delay.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "backend/cuda/device/runtime/errors.h"
#include "base/clock.h"

namespace ringtrain::cuda {
namespace {

constexpr std::size_t copy_bytes = std::size_t{4} << 20;  // 70 to 160 us by PCI Express; queueing a copy takes 3 us
constexpr int measured_copies = 4;
constexpr int most_copies = 400;

}  // namespace

void Delay::copy(cudaStream_t stream) {
  check(cudaMemcpyAsync(device_, host_, copy_bytes, cudaMemcpyHostToDevice, stream), "delaying a stream");
}

// The host's clock is exact enough here. It includes the host's own calls, so a copy seems to take a little longer.
void Delay::start(cudaStream_t stream) {
  check(cudaHostAlloc(&host_, copy_bytes, cudaHostAllocDefault), "taking page-locked memory");
  std::memset(host_, 0, copy_bytes);
  check(cudaMalloc(&device_, copy_bytes), "taking memory");
  copy(stream);  // the first copy is slow
  check(cudaStreamSynchronize(stream), "delaying a stream");
  const double begin = now_seconds();
  for (int i = 0; i < measured_copies; ++i) copy(stream);
  check(cudaStreamSynchronize(stream), "delaying a stream");
  copy_seconds_ = (now_seconds() - begin) / measured_copies;
}

void Delay::queue(cudaStream_t stream, double seconds) {
  if (copy_seconds_ == 0) {
    release();  // an earlier start may have failed half-way
    start(stream);
  }
  const double copies = std::min(seconds / copy_seconds_, static_cast<double>(most_copies));
  for (int i = 0; i == 0 || i < copies; ++i) copy(stream);
}

void Delay::release() {
  if (device_ != nullptr) cudaFree(std::exchange(device_, nullptr));
  if (host_ != nullptr) cudaFreeHost(std::exchange(host_, nullptr));
  copy_seconds_ = 0;
}

}  // namespace ringtrain::cuda
