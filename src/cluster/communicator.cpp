#include "cluster/communicator.h"

#include "cluster/waiting.h"

namespace ringtrain {

void Pending::finish() {
  for (Waiter waiter; !done();) waiter.pause();
}

void wait(Pending& pending) {
  pending.finish();
}

void Communicator::sum(std::span<float> values) {
  wait(*start_sum(values));
}
void Communicator::sum(std::span<double> values) {
  wait(*start_sum(values));
}

void Communicator::broadcast_vector(std::span<float> values, int root) {
  broadcast(std::as_writable_bytes(values), root);
}

std::string broadcast_string(Communicator& communicator, std::string text, int root) {
  std::uint64_t length = text.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(length);
  communicator.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root);
  return text;
}

}  // namespace ringtrain
