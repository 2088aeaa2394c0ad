// SMPI gives every rank its own copy of static variables. The address of the common memory is therefore kept in the
// data of the first host, where all ranks find it.
#include "memory.h"

#include <mpi.h>

#include <cstdlib>
#include <new>
#include <simgrid/s4u.hpp>

namespace simulate {
namespace {

constexpr std::size_t most = 1 << 30;
char* begin = nullptr;

bool is_common(const void* memory) {
  return begin != nullptr && memory >= begin && memory < begin + most;
}

}  // namespace

void* common_memory(std::size_t bytes) {
  if (bytes > most) throw std::bad_alloc();
  simgrid::s4u::Host* first = simgrid::s4u::Engine::get_instance()->host_by_name("n0");
  if (begin == nullptr) begin = first->get_data<char>();
  if (begin == nullptr) first->set_data(begin = static_cast<char*>(SMPI_SHARED_MALLOC(most)));
  return begin;
}

}  // namespace simulate

// Arrays (new[]) are not common: each has memory of its own. Message buffers are large vectors, which use the operator
// below.
void* operator new[](std::size_t bytes) {
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes) {
  if (bytes >= simulate::common_from) return simulate::common_memory(bytes);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  if (!simulate::is_common(memory)) std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
