// Collectives of device memory by NCCL: make_nccl_communicator() of device_communicator.h.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cluster/device_communicator.h"
#include "cluster/nccl_connection.h"

namespace ringtrain {
namespace {

using cuda::Type;

constexpr std::size_t kAlign = 64;  // in elements: pieces of a sum in a fixed order begin at multiples of it

NcclType nccl_type(Type type) {
  return type == Type::fp32 ? NcclType::fp32 : type == Type::bf16 ? NcclType::bf16 : NcclType::fp16;
}

// NCCL works on `memory`, or on `half` if gradients travel in 16 bits.
struct NcclVector {
  float* memory = nullptr;
  std::int64_t count = 0;
  void* half = nullptr;
  void* handle = nullptr;  // handle of NCCL's registration
  bool by_nccl = false;
};

class NcclCommunicator final : public HostedCommunicator<NcclVector> {
 public:
  NcclCommunicator(const NcclApi& api, cuda::Device& device, Communicator& host, const NcclOptions& options)
      : HostedCommunicator(device, host),
        api_(api),
        options_(options),
        queue_(api, device,
               {.rank = rank(),
                .size = size(),
                .who = cat("rank ", rank(), " of ", size()),
                .max_ctas = options.max_ctas,
                .timeout_seconds = options.timeout_seconds},
               ": not all ranks took part") {
    api_.get_version(&version_);
    take_kept_variables(options.algorithm, options.kept, rank() == 0);
    choose_algorithm(options.algorithm, version_);
    compare_records(record(), host);
    if (options.fixed_order_elements > 0 && size() > 1)
      arrivals_ = cuda::DeviceMemory(device, nccl_arrival_bytes(options.fixed_order_elements), "what ranks exchange");
    NcclUniqueId id{};
    if (rank() == 0) id = connection_.make_id();
    connection_.start(of_rank_0(host, id), "the start of NCCL");
  }

  std::string describe() const override {
    const char* asked = std::getenv("NCCL_ALGO");
    return cat("NCCL ", nccl_version_text(version_), ", algorithm ",
               options_.fixed_order_elements > 0 ? "halving in a fixed order"
               : asked != nullptr                ? asked
                                                 : "chosen by NCCL",
               ", ", cuda::type_name(options_.gradient_type), " gradients",
               options_.max_ctas > 0 ? cat(", at most ", options_.max_ctas, " blocks") : std::string(),
               "; host memory: ", host_.describe());
  }
  std::map<std::string, std::string> record() const override {
    std::map<std::string, std::string> facts = {{"nccl", nccl_version_text(version_)},
                                                {"algorithm", options_.algorithm},
                                                {"gradient_type", cuda::type_name(options_.gradient_type)},
                                                {"max_ctas", cat(options_.max_ctas)}};
    if (options_.fixed_order_elements > 0) facts["order"] = "fixed";
    facts.merge(nccl_variables());
    return facts;
  }
  using HostedCommunicator::start_sum;
  std::unique_ptr<Pending> start_sum(std::span<float> values, const BeforeSum& before) override {
    const std::int64_t count = std::ssize(values);
    const Type type = options_.gradient_type;
    const Rounded part = rounded(values);
    return collective(name_of(values), [&](const std::string& what) {
      if (before) before(queue_.stream.handle);
      if (options_.fixed_order_elements > 0) return sum_in_tree(values, what);
      if (part.count > 0) {
        cast(values.data(), part.buffer, part.count, Type::fp32, type, rounding_.scale);
        sum_in_place(part.buffer, part.count, type, what);
        cast(part.buffer, values.data(), part.count, type, Type::fp32, 1 / rounding_.scale);
      }
      if (part.count < count || count == 0)
        sum_in_place(values.data() + part.count, count - part.count, Type::fp32, what);
    });
  }
  std::unique_ptr<Pending> start_reduce_scatter(std::span<float> values, std::int64_t piece,
                                                const BeforeSum& before) override {
    check_pieces(values, piece);
    const std::int64_t count = std::ssize(values), begin = std::min(count, rank() * piece);
    return start_part(values, begin, std::min(count, begin + piece), before, [&](void* at, NcclType type) {
      sent_bytes().by_message += ring_half_bytes(count * bytes_of(type), size());
      return reduce_pieces(calls(), at, count, piece, type);
    });
  }
  std::unique_ptr<Pending> start_all_gather(std::span<float> values, std::int64_t piece) override {
    check_pieces(values, piece);
    return collective(cat("the gathering of ", values.size(), " values"), [&](const std::string& what) {
      sent_bytes().by_message += ring_half_bytes(std::ssize(std::as_bytes(values)), size());
      connection_.accept(gather_pieces(calls(), values.data(), std::ssize(values), piece), what);
    });
  }
  std::unique_ptr<Pending> start_root_sum(std::span<float> values, int root, const BeforeSum& before) override {
    const std::int64_t end = rank() == root ? std::ssize(values) : 0;
    return start_part(values, 0, end, before, [&](void* at, NcclType type) {
      if (rank() != root) sent_bytes().by_message += std::ssize(values) * bytes_of(type);
      return api_.reduce(at, at, values.size(), type, NcclOperation::sum, root, connection_.get(), queue_.handle());
    });
  }
  std::unique_ptr<Pending> start_broadcast(std::span<float> values, int root) override {
    return collective(cat("the broadcast of ", values.size(), " values from rank ", root),
                      [&](const std::string& what) {
                        if (rank() == root) sent_bytes().by_message += (size() - 1) * std::ssize(std::as_bytes(values));
                        connection_.accept(api_.broadcast(values.data(), values.data(), values.size(), NcclType::fp32,
                                                          root, connection_.get(), queue_.handle()),
                                           what);
                      });
  }
  void set_rounding(const GradientRounding& rounding) override { rounding_ = rounding; }
  void broadcast_vector(std::span<float> values, int root) override { start_broadcast(values, root)->finish(); }
  void* allocate(std::int64_t bytes) override {
    if (bytes <= 0) return nullptr;
    NcclVector a;
    a.count = bytes / static_cast<std::int64_t>(sizeof(float));
    const bool fp32 = options_.gradient_type == Type::fp32;
    const std::int64_t sum_bytes = a.count * cuda::bytes_of(options_.gradient_type);
    void* registered = allocate_registered(sum_bytes, a.handle);
    a.by_nccl = registered != nullptr;
    if (!a.by_nccl) {
      if (rank() == 0) log_warning("NCCL registers no memory here: sums go through its own buffers and are slower");
      registered = device_.allocate(sum_bytes, cat(cuda::type_name(options_.gradient_type), " gradients for NCCL"));
    }
    device_.zero(registered, sum_bytes, device_.compute_stream());
    a.memory = static_cast<float*>(fp32 ? registered : device_.allocate(bytes, "gradients"));
    a.half = fp32 ? nullptr : registered;
    allocations_.push_back(a);
    return a.memory;
  }
  void release(void* memory) override {
    NcclVector a;
    if (!take_out(memory, a)) return;
    // Freeing would wait for sums, and therefore for ranks that may never come.
    if (std::uncaught_exceptions() > 0) abort("an error ended this rank");
    void* registered = a.half != nullptr ? a.half : a.memory;
    if (a.half != nullptr) device_.release(a.memory);
    if (a.by_nccl) {
      deregister(a.handle);
      api_.release(registered);
    } else {
      device_.release(registered);
    }
  }
  void poll() override { queue_.poll(); }
  void abort(const std::string& why) override { connection_.abort(why); }

 private:
  // Lets `call` queue a collective in NCCL's stream. The collective runs after all work that is now in the compute
  // stream.
  template <class Call>
  std::unique_ptr<Pending> collective(std::string what, const Call& call) {
    if (connection_.aborted())
      throw Error(cat("rank ", rank(), " of ", size(), ": ", what, " was asked for after NCCL had been ended"));
    return queue_.pending(queue_.start(std::move(what), call));
  }
  struct Rounded {
    void* buffer = nullptr;
    std::int64_t count = 0;  // number of rounded values, which come first
  };
  // Returns the number of values that travel in 16 bits, and their buffer.
  Rounded rounded(std::span<float> values) const {
    if (options_.gradient_type == Type::fp32) return {};
    const NcclVector* vector = find(values);
    if (vector == nullptr)
      throw Error(cat("the values of a sum in ", cuda::type_name(options_.gradient_type),
                      " are not in memory from allocate()"));
    const std::int64_t begin = values.data() - vector->memory;
    return {static_cast<std::byte*>(vector->half) + begin * cuda::bytes_of(options_.gradient_type),
            std::clamp<std::int64_t>(rounding_.elements - begin, 0, std::ssize(values))};
  }
  void cast(const void* from, void* to, std::int64_t count, Type from_type, Type to_type, float scale) {
    device_.launch(cuda::launch_of(cuda::CastArguments{from, to, count, from_type, to_type, scale}), queue_.stream);
  }
  NcclStream calls() { return {api_, connection_.get(), queue_.handle(), rank(), size()}; }
  // Starts a collective by `call`, which gets the address and the type of the values. Either all values are rounded to
  // 16 bits or none. This rank's part of the result, [begin, end), is converted back.
  template <class Call>
  std::unique_ptr<Pending> start_part(std::span<float> values, std::int64_t begin, std::int64_t end,
                                      const BeforeSum& before, const Call& call) {
    const std::int64_t count = std::ssize(values);
    const Type type = options_.gradient_type;
    const Rounded part = rounded(values);
    const bool is_rounded = part.count == count && count > 0;
    return collective(name_of(values), [&](const std::string& what) {
      if (before) before(queue_.stream.handle);
      if (!is_rounded) return connection_.accept(call(static_cast<void*>(values.data()), NcclType::fp32), what);
      cast(values.data(), part.buffer, count, Type::fp32, type, rounding_.scale);
      connection_.accept(call(part.buffer, nccl_type(type)), what);
      if (begin < end)
        cast(static_cast<std::byte*>(part.buffer) + begin * cuda::bytes_of(type), values.data() + begin, end - begin,
             type, Type::fp32, 1 / rounding_.scale);
    });
  }
  void sum_in_place(void* values, std::int64_t count, Type type, const std::string& what) {
    sent_bytes().by_message += 2 * ring_half_bytes(count * cuda::bytes_of(type), size());
    connection_.accept(api_.all_reduce(values, values, static_cast<std::size_t>(count), nccl_type(type),
                                       NcclOperation::sum, connection_.get(), queue_.handle()),
                       what);
  }
  // Carries out the steps of the schedule one after the other.
  void sum_in_tree(std::span<float> values, const std::string& what) {
    if (std::ssize(values) > options_.fixed_order_elements)
      throw Error(
          cat(what, ": ", values.size(), " values in a fixed order, expected at most ", options_.fixed_order_elements));
    auto* const arrivals = arrivals_.data<float>();
    for (const SumStep& step : halving_sum(rank(), size(), values.size(), kAlign)) {
      float* const own = values.data() + step.received.begin;
      connection_.accept(exchange(calls(), step, values.data(), step.adds ? arrivals : own), what);
      sent_bytes().by_message += static_cast<std::int64_t>(step.sent.size() * sizeof(float));
      if (step.adds && step.received.size() > 0)
        device_.launch(
            cuda::launch_of(
                Type::fp32,
                cuda::AddArguments{
                    .a = own, .b = arrivals, .y = own, .count = static_cast<std::int64_t>(step.received.size())}),
            queue_.stream);
    }
  }
  // Returns the name of a sum for messages, with the number of its bucket. Buckets come in order. The count starts
  // again with a bucket at the beginning of the vector.
  std::string name_of(std::span<float> values) {
    const NcclVector* vector = find(values);
    if (vector == nullptr) return cat("the sum of ", values.size(), " values");
    const std::int64_t begin = values.data() - vector->memory;
    bucket_ = begin == 0 ? 0 : bucket_ + 1;
    return cat("the sum of bucket ", bucket_, " (gradients ", begin, " to ", begin + std::ssize(values), ")");
  }
  void* allocate_registered(std::int64_t bytes, void*& handle) {
    void* memory = nullptr;
    handle = nullptr;
    const auto size_bytes = static_cast<std::size_t>(bytes);
    bool good = api_.allocate != nullptr && api_.register_memory != nullptr && api_.release != nullptr &&
                api_.deregister != nullptr && api_.allocate(&memory, size_bytes) == NcclResult::success;
    if (good) {
      const NcclResult result = api_.register_memory(connection_.get(), memory, size_bytes, &handle);
      good = result == NcclResult::success || result == NcclResult::in_progress;
      if (good) connection_.settle("the registration of the gradients' memory");
    }
    // A sum must use registered memory on all ranks or on none.
    double refused = good ? 0 : 1;
    host_.sum(std::span<double>(&refused, 1));
    if (refused == 0) return memory;
    if (good) deregister(handle);
    if (memory != nullptr) api_.release(memory);
    handle = nullptr;
    return nullptr;
  }
  // Destructors call it, so it throws nothing.
  void deregister(void* handle) {
    if (handle == nullptr || connection_.get() == nullptr) return;
    try {
      if (api_.deregister(connection_.get(), handle) == NcclResult::in_progress)
        connection_.settle("giving back the gradients' memory");
    } catch (const std::exception& e) {
      log_warning(e.what());
    }
  }

  const NcclApi& api_;
  NcclOptions options_;
  int version_ = 0;
  NcclQueue queue_;
  NcclConnection& connection_ = queue_.connection;
  cuda::DeviceMemory arrivals_;  // values from other ranks, for sums in a fixed order
  GradientRounding rounding_;
  std::int64_t bucket_ = 0;
};

}  // namespace

std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclApi& api, cuda::Device& device, Communicator& host,
                                                           const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(api, device, host, options);
}

std::int64_t nccl_arrival_bytes(std::int64_t fixed_order_elements) {
  return static_cast<std::int64_t>(most_received(static_cast<std::size_t>(fixed_order_elements), kAlign) *
                                   sizeof(float));
}

}  // namespace ringtrain
