#include "tests/emulation/fake_nccl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/small_floats.h"

namespace ringtrain {
namespace {

std::array<FakeNccl*, FakeNccl::most> living{};
NcclComm* const handle = reinterpret_cast<NcclComm*>(0x1234);

const char* type_text(NcclType type) {
  return type == NcclType::fp32 ? "fp32" : type == NcclType::bf16 ? "bf16" : "fp16";
}

std::size_t size_of(NcclType type) {
  return type == NcclType::fp32 ? 4 : 2;
}

std::vector<float> widened(const void* memory, std::size_t count, NcclType type) {
  std::vector<float> values(count);
  const auto* half = static_cast<const std::uint16_t*>(memory);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = type == NcclType::fp32   ? static_cast<const float*>(memory)[i]
                : type == NcclType::bf16 ? from_bf16(half[i])
                                         : from_fp16(half[i]);
  return values;
}

void narrow(std::span<const float> values, void* memory, NcclType type) {
  auto* half = static_cast<std::uint16_t*>(memory);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == NcclType::fp32)
      static_cast<float*>(memory)[i] = values[i];
    else
      half[i] = type == NcclType::bf16 ? to_bf16(values[i]) : to_fp16(values[i]);
  }
}

}  // namespace

// The functions of NCCL, with the FakeNccl that does the work as first argument.
struct FakeNccl::Functions {
  static NcclResult get_version(FakeNccl& fake, int* version) {
    *version = fake.version;
    return NcclResult::success;
  }
  static NcclResult get_unique_id(FakeNccl& fake, NcclUniqueId* id) {
    fake.calls.push_back("get_unique_id");
    std::ranges::fill(id->bytes, 'x');
    return NcclResult::success;
  }
  static NcclResult init_rank(FakeNccl& fake, NcclComm** comm, int ranks, NcclUniqueId id, int rank,
                              NcclConfig* config) {
    if (fake.initialised_) fake.misuses.push_back("a second communicator");
    if (id.bytes[0] != 'x') fake.misuses.push_back("an id that is not rank 0's");
    if (fake.on_init) fake.on_init(*config, ranks, rank);
    fake.initialised_ = true;
    fake.rank_ = rank;
    fake.ranks_ = ranks;
    *comm = handle;
    return fake.begin(cat("init_rank of ", ranks, ", blocks ", config->max_ctas, ", blocking ", config->blocking));
  }
  static NcclResult finalize(FakeNccl& fake, NcclComm*) { return fake.begin("finalize"); }
  static NcclResult destroy(FakeNccl& fake, NcclComm*) {
    const NcclResult result = fake.begin("destroy");
    for (const Memory& m : fake.memory_)
      if (m.registered) fake.misuses.push_back("destroyed with registered memory");
    fake.in_progress_ = false;
    fake.ended_ = true;
    return result == NcclResult::in_progress ? NcclResult::success : result;
  }
  static NcclResult abort(FakeNccl& fake, NcclComm*) {  // allowed at any time, from another thread
    fake.calls.push_back("abort");
    fake.ended_ = true;
    return NcclResult::success;
  }
  static NcclResult async_error(FakeNccl& fake, NcclComm* comm, NcclResult* error) {
    if (comm != handle || fake.ended_) fake.misuses.push_back("async_error after the end");
    *error = fake.async;
    if (fake.in_progress_ && fake.async == NcclResult::success) {
      const bool meets = fake.meeting_ && !fake.meeting_();
      if (meets || fake.never_ready || --fake.open_polls_ > 0) {
        *error = NcclResult::in_progress;
        return NcclResult::success;
      }
      fake.in_progress_ = false;
      fake.meeting_ = nullptr;
      if (fake.when_through_) std::exchange(fake.when_through_, nullptr)();
    }
    return NcclResult::success;
  }
  static NcclResult all_reduce(FakeNccl& fake, const void* from, void* to, std::size_t count, NcclType type,
                               NcclOperation, NcclComm*, void* stream) {
    if (from != to) fake.misuses.push_back("a sum that is not in place");
    const std::size_t bytes = count * size_of(type);
    return fake.begin(
        cat("all_reduce ", count, fake.place(to, bytes), ", ", type_text(type), ", stream ",
            reinterpret_cast<std::uintptr_t>(stream)),
        [&fake, to, count, type, stream] { fake.give("all_reduce", to, count, type, stream, fake.sum_); });
  }
  // NCCL leaves the memory of the other ranks as it was.
  static NcclResult reduce(FakeNccl& fake, const void* from, void* to, std::size_t count, NcclType type, NcclOperation,
                           int root, NcclComm*, void* stream) {
    if (from != to) fake.misuses.push_back("a sum on one rank that is not in place");
    return fake.begin(cat("reduce ", count, " ", type_text(type), " to ", root),
                      [&fake, to, count, type, root, stream] {
                        fake.give("reduce", to, count, type, stream, [&fake, root](std::span<float> values) {
                          std::vector<float> sums(values.begin(), values.end());
                          fake.sum_(sums);
                          if (fake.rank_ == root) std::ranges::copy(sums, values.begin());
                        });
                      });
  }
  static NcclResult reduce_scatter(FakeNccl& fake, const void* from, void* to, std::size_t count, NcclType type,
                                   NcclOperation, NcclComm*, void* stream) {
    const std::size_t own = static_cast<std::size_t>(fake.rank_) * count;
    if (static_cast<const char*>(from) + own * size_of(type) != to)
      fake.misuses.push_back("a reduce-scatter that is not in place");
    return fake.begin(cat("reduce_scatter ", count, " ", type_text(type)), [=, &fake] {
      fake.give("reduce_scatter", const_cast<void*>(from), count * static_cast<std::size_t>(fake.ranks_), type, stream,
                [&fake, own, count](std::span<float> values) {
                  std::vector<float> sums(values.begin(), values.end());
                  fake.sum_(sums);
                  std::ranges::copy(std::span(sums).subspan(own, count), values.subspan(own).begin());
                });
    });
  }
  static NcclResult all_gather(FakeNccl& fake, const void* from, void* to, std::size_t count, NcclType type, NcclComm*,
                               void* stream) {
    const std::size_t own = static_cast<std::size_t>(fake.rank_) * count;
    if (static_cast<char*>(to) + own * size_of(type) != from)
      fake.misuses.push_back("an all-gather that is not in place");
    return fake.begin(cat("all_gather ", count, " ", type_text(type)), [=, &fake] {
      fake.give("all_gather", to, count * static_cast<std::size_t>(fake.ranks_), type, stream,
                [&fake, own, count](std::span<float> values) {
                  std::ranges::fill(values.first(own), 0.0f);
                  std::ranges::fill(values.subspan(own + count), 0.0f);
                  fake.sum_(values);
                });
    });
  }
  static NcclResult send(FakeNccl& fake, const void* from, std::size_t count, NcclType type, int peer, NcclComm*,
                         void* stream) {
    if (!fake.peer_)
      return fake.cross({.sent = {static_cast<const float*>(from), count}, .to = peer, .stream = stream});
    if (type != NcclType::bytes || peer != 1 - fake.rank_) fake.misuses.push_back("a message to nobody");
    return fake.pass("send", const_cast<void*>(from), count, stream, true);
  }
  static NcclResult receive(FakeNccl& fake, void* to, std::size_t count, NcclType type, int peer, NcclComm*,
                            void* stream) {
    if (!fake.peer_) return fake.cross({.received = {static_cast<float*>(to), count}, .from = peer, .stream = stream});
    if (type != NcclType::bytes || peer != 1 - fake.rank_) fake.misuses.push_back("a message from nobody");
    return fake.pass("receive", to, count, stream, false);
  }
  static NcclResult group_start(FakeNccl& fake) {
    if (std::exchange(fake.grouped_, true)) fake.misuses.push_back("a group within a group");
    return NcclResult::success;
  }
  static NcclResult group_end(FakeNccl& fake) {
    if (!std::exchange(fake.grouped_, false)) fake.misuses.push_back("the end of no group");
    if (fake.crossing_.stream != nullptr) fake.give_crossing();
    return fake.begin("group_end", [works = std::exchange(fake.group_, {})] {
      for (const auto& work : works) work();
    });
  }
  static NcclResult broadcast(FakeNccl& fake, const void* from, void* to, std::size_t count, NcclType type, int root,
                              NcclComm*, void* stream) {
    if (from != to) fake.misuses.push_back("a broadcast that is not in place");
    return fake.begin(cat("broadcast ", count, " ", type_text(type), " from ", root),
                      [&fake, to, count, type, root, stream] {
                        fake.give("broadcast", to, count, type, stream, [&fake, root](std::span<float> values) {
                          if (fake.rank_ != root) std::ranges::fill(values, 0.0f);
                          fake.sum_(values);
                        });
                      });
  }
  static const char* error_text(NcclResult result) {
    return result == NcclResult::remote_error ? "remote process exited" : "unhandled error";
  }
  static const char* last_error(NcclComm*) { return "said by NCCL"; }
  static NcclResult allocate(FakeNccl& fake, void** memory, std::size_t bytes) {
    fake.calls.push_back(cat("allocate ", bytes));
    if (fake.refuse_allocation) return NcclResult{1};
    *memory = fake.device_.allocate(static_cast<std::int64_t>(bytes), "of NCCL");
    fake.device_.poison(*memory, static_cast<std::int64_t>(bytes));  // NCCL does not promise zeros
    fake.memory_.push_back({static_cast<char*>(*memory), bytes, false});
    return NcclResult::success;
  }
  static NcclResult release(FakeNccl& fake, void* memory) {
    fake.calls.push_back("release");
    const auto m = std::ranges::find(fake.memory_, memory, [](const Memory& x) { return static_cast<void*>(x.begin); });
    if (m == fake.memory_.end()) {
      fake.misuses.push_back("release of memory that NCCL did not give");
      return NcclResult{4};
    }
    if (m->registered && !fake.ended_) fake.misuses.push_back("release of registered memory");
    fake.memory_.erase(m);
    fake.device_.release(memory);
    return NcclResult::success;
  }
  static NcclResult register_memory(FakeNccl& fake, NcclComm*, void* memory, std::size_t bytes, void** registration) {
    if (fake.refuse_registration) {
      fake.calls.push_back("register refused");
      return NcclResult{4};
    }
    for (Memory& m : fake.memory_)
      if (m.begin == memory && m.bytes == bytes) m.registered = true;
    *registration = memory;
    return fake.begin(cat("register ", bytes));
  }
  static NcclResult deregister(FakeNccl& fake, NcclComm*, void* registration) {
    for (Memory& m : fake.memory_)
      if (m.begin == registration) m.registered = false;
    return fake.begin("deregister");
  }
};

// A function of NCCL has no state, so each slot has functions of its own.
template <auto Function, std::size_t Slot>
struct OfSlot;
template <class Result, class... Arguments, Result (*Function)(FakeNccl&, Arguments...), std::size_t Slot>
struct OfSlot<Function, Slot> {
  static Result call(Arguments... arguments) { return Function(*living[Slot], arguments...); }
};

template <std::size_t... Slots>
NcclApi FakeNccl::functions(std::size_t slot, std::index_sequence<Slots...>) {
  using F = Functions;
  const NcclApi all[] = {{OfSlot<F::get_version, Slots>::call,
                          OfSlot<F::get_unique_id, Slots>::call,
                          OfSlot<F::init_rank, Slots>::call,
                          OfSlot<F::finalize, Slots>::call,
                          OfSlot<F::destroy, Slots>::call,
                          OfSlot<F::abort, Slots>::call,
                          OfSlot<F::async_error, Slots>::call,
                          OfSlot<F::all_reduce, Slots>::call,
                          OfSlot<F::broadcast, Slots>::call,
                          OfSlot<F::reduce, Slots>::call,
                          OfSlot<F::reduce_scatter, Slots>::call,
                          OfSlot<F::all_gather, Slots>::call,
                          OfSlot<F::send, Slots>::call,
                          OfSlot<F::receive, Slots>::call,
                          OfSlot<F::group_start, Slots>::call,
                          OfSlot<F::group_end, Slots>::call,
                          F::error_text,
                          F::last_error,
                          OfSlot<F::allocate, Slots>::call,
                          OfSlot<F::release, Slots>::call,
                          OfSlot<F::register_memory, Slots>::call,
                          OfSlot<F::deregister, Slots>::call}...};
  return all[slot];
}

FakeNccl::FakeNccl(cuda::HostDevice& device, std::function<void(std::span<float>)> sum)
    : device_(device), sum_(std::move(sum)) {
  slot_ = static_cast<std::size_t>(std::ranges::find(living, nullptr) - living.begin());
  if (slot_ == most) throw Error(cat("more than ", most, " communicators of the NCCL for tests"));
  living[slot_] = this;
  api_ = functions(slot_, std::make_index_sequence<most>());
}

FakeNccl::FakeNccl(cuda::HostDevice& device, std::unique_ptr<FakePeer> peer)
    : FakeNccl(device, [](std::span<float>) { throw Error("a sum of ranks that exchange messages only"); }) {
  peer_ = std::move(peer);
}

FakeNccl::~FakeNccl() {
  living[slot_] = nullptr;
}

// The first message connects the two ranks, and its call is in progress until the other rank has called, too. The work
// of a message ends when the other rank has taken part in it.
NcclResult FakeNccl::pass(const char* what, void* memory, std::size_t bytes, void* stream, bool sends) {
  if (!std::exchange(met_, true)) meeting_ = peer_->meet();
  return begin(cat(what, " ", bytes), [=, this] {
    struct Way {
      std::vector<std::byte> bytes;
      std::function<bool()> asked;
    };
    auto way = std::make_shared<Way>();
    const auto ready = [=, this] {
      if (ended_) return true;  // an abort ends all waits
      if (!way->asked) {
        way->bytes.resize(bytes);
        if (sends) std::memcpy(way->bytes.data(), memory, bytes);
        way->asked = sends ? peer_->send(way->bytes) : peer_->receive(way->bytes);
      }
      return way->asked();
    };
    device_.give_work(
        {reinterpret_cast<std::uintptr_t>(stream)}, what, {{memory, static_cast<std::int64_t>(bytes), !sends}},
        [=, this] {
          if (!sends && !ended_) std::memcpy(memory, way->bytes.data(), bytes);
        },
        ready);
  });
}

// The two messages must be in one group. Outside a group each rank would wait for the other one.
NcclResult FakeNccl::cross(const Crossing& message) {
  if (!grouped_) misuses.push_back("a message to one of many ranks outside a group");
  calls.push_back(message.to >= 0 ? cat("send ", message.sent.size(), " to ", message.to)
                                  : cat("receive ", message.received.size(), " from ", message.from));
  if (message.to >= 0)
    crossing_.sent = message.sent, crossing_.to = message.to;
  else
    crossing_.received = message.received, crossing_.from = message.from;
  crossing_.stream = message.stream;
  return NcclResult::in_progress;
}

void FakeNccl::give_crossing() {
  group_.push_back([this, both = std::exchange(crossing_, {})] {
    device_.give_work({reinterpret_cast<std::uintptr_t>(both.stream)}, "messages",
                      {{const_cast<float*>(both.sent.data()), static_cast<std::int64_t>(both.sent.size_bytes()), false},
                       {both.received.data(), static_cast<std::int64_t>(both.received.size_bytes()), true}},
                      [=, this] { exchange(both.sent, both.to, both.received, both.from); });
  });
}

int FakeNccl::count(const std::string& begin) const {
  return static_cast<int>(std::ranges::count_if(calls, [&](const std::string& c) { return c.starts_with(begin); }));
}

// Local calls are done at once. Other calls are done when async_error has been called often enough.
NcclResult FakeNccl::begin(std::string call, std::function<void()> when_through) {
  if (ended_) misuses.push_back(call + " after the end");
  if (grouped_) {
    calls.push_back(std::move(call));
    group_.push_back(std::move(when_through));
    return NcclResult::in_progress;
  }
  if (in_progress_) misuses.push_back(call + " while another call is in progress");
  calls.push_back(std::move(call));
  in_progress_ = true;
  open_polls_ = polls_in_progress;
  when_through_ = std::move(when_through);
  return NcclResult::in_progress;
}

std::string FakeNccl::place(const void* memory, std::size_t bytes) {
  const auto* at = static_cast<const char*>(memory);
  for (const Memory& m : memory_)
    if (at >= m.begin && at + bytes <= m.begin + m.bytes)
      return cat(" at +", at - m.begin, " of ", m.bytes, " bytes", m.registered ? "" : " (not registered)");
  return " in memory of the device";
}

void FakeNccl::give(const char* what, void* memory, std::size_t count, NcclType type, void* stream,
                    std::function<void(std::span<float>)> change) {
  const std::size_t bytes = count * size_of(type);
  device_.give_work({reinterpret_cast<std::uintptr_t>(stream)}, what,
                    {{memory, static_cast<std::int64_t>(bytes), true}}, [=, change = std::move(change)] {
                      std::vector<float> values = widened(memory, count, type);
                      change(values);
                      narrow(values, memory, type);
                    });
}

}  // namespace ringtrain
