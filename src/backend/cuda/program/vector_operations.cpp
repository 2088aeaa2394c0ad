#include "backend/cuda/program/vector_operations.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {
namespace {

std::vector<NormRange> norm_ranges(std::span<const ElementRange> ranges) {
  expect_ranges(ranges);
  std::vector<NormRange> result;
  for (const ElementRange& range : ranges) result.push_back({.begin = range.begin, .count = range.end - range.begin});
  return result;
}

}  // namespace

NewestWork::~NewestWork() {
  *count_ -= bytes_;
  try {
    wait({});
  } catch (const Error&) {  // the device is lost, and the next call to it reports that
  }
}

DeviceRangeNorms::DeviceRangeNorms(Device& device, std::function<void()> poll, std::span<const ElementRange> ranges,
                                   std::shared_ptr<std::int64_t> bytes)
    : device_(device),
      poll_(std::move(poll)),
      ranges_(norm_ranges(ranges)),
      blocks_(range_blocks(ranges_)),
      table_(device, size_in_bytes<NormRange>(std::ssize(ranges_)), "the ranges of norms"),
      partial_(device, size_in_bytes<double>(blocks_), "partial sums of norms"),
      norms_(device, size_in_bytes<double>(std::ssize(ranges_)), "norms"),
      host_(device, std::ssize(ranges_)),
      stream_(device.compute_stream()),
      work_(device, std::move(bytes), table_.bytes() + partial_.bytes() + norms_.bytes()) {
  for (const NormRange& range : ranges_) end_ = std::max(end_, range.begin + range.count);
  device_.copy(table_.data(), ranges_.data(), table_.bytes(), CopyKind::to_device, stream_);
  work_.record(stream_);
  work_.wait(poll_);  // after this wait any stream may measure
}

DeviceRangeNorms::Parts DeviceRangeNorms::parts() {
  stream_ = device_.compute_stream();
  return {table_.data<const NormRange>(), static_cast<int>(size()), partial_.data<double>(), blocks_};
}

void DeviceRangeNorms::measure(const Vector& values, std::uintptr_t stream) {
  expect_within(end_, values.size());
  launch(values, nullptr, true, stream);
}

void DeviceRangeNorms::measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t stream) {
  expect_within(end_, std::min(values.size(), before.size()));
  launch(values, &before, first, stream);
}

// Without `before`, the values themselves are measured.
void DeviceRangeNorms::launch(const Vector& values, Vector* before, bool first, std::uintptr_t stream) {
  const auto [ranges, count, partial, blocks] = parts();
  if (stream != 0) stream_ = Stream{stream};
  device_.launch(launch_of(SquaredNormPartsArguments{.values = values.data(),
                                                     .ranges = ranges,
                                                     .partial = partial,
                                                     .count = count,
                                                     .blocks = blocks,
                                                     .before = before == nullptr ? nullptr : before->data(),
                                                     .first = first}),
                 stream_);
  add_parts(!first);
}

void DeviceRangeNorms::add_parts(bool add) {
  device_.launch(launch_of(SquaredNormsArguments{.partial = partial_.data<const double>(),
                                                 .ranges = table_.data<const NormRange>(),
                                                 .norms = norms_.data<double>(),
                                                 .count = static_cast<int>(size()),
                                                 .blocks = blocks_,
                                                 .add = add}),
                 stream_);
  work_.record(stream_);
  fetched_ = false;
}

void DeviceRangeNorms::fetch() {
  device_.copy(host_.data(), norms_.data(), norms_.bytes(), CopyKind::to_host, stream_);
  work_.record(stream_);
  fetched_ = true;
}

std::span<const double> DeviceRangeNorms::values() {
  if (!fetched_) fetch();
  work_.wait(poll_);
  return {host_.data(), ranges_.size()};
}

namespace {

// DeviceVector is a flat fp32 vector in device memory.
class DeviceVector : public Vector {
 public:
  // `reduced_bytes` counts the part of the memory from `reduced` that the device did not allocate.
  DeviceVector(Device& device, std::int64_t size, ReducedMemory reduced, std::shared_ptr<std::int64_t> reduced_bytes)
      : Vector(size), device_(device), reduced_(std::move(reduced)), reduced_bytes_(std::move(reduced_bytes)) {
    if (!reduced_.allocate) {
      own_ = DeviceMemory(device, bytes(), "a flat vector");
      data_ = own_.data<float>();
      return;
    }
    const std::int64_t before = device.allocated_bytes();
    data_ = static_cast<float*>(reduced_.allocate(bytes()));
    elsewhere_ = std::max<std::int64_t>(0, bytes() - (device.allocated_bytes() - before));
    *reduced_bytes_ += elsewhere_;
    device_.zero(data_, bytes(), device_.compute_stream());
  }
  ~DeviceVector() override {
    try {
      // The work of the compute stream may still use the vector.
      wait_for(device_, device_.compute_stream(), device_.make_event(), {});
    } catch (const Error&) {  // the device is lost, and the next call to it reports that
    }
    *reduced_bytes_ -= elsewhere_;
    if (reduced_.allocate && reduced_.release) reduced_.release(data_);
  }

 private:
  Device& device_;
  ReducedMemory reduced_;
  DeviceMemory own_;            // if `reduced_` is empty
  std::int64_t elsewhere_ = 0;  // bytes that Device::allocate() did not count
  std::shared_ptr<std::int64_t> reduced_bytes_;
};

std::vector<NormRange> word_ranges(std::span<const ChecksumRange> ranges) {
  expect_checksum_ranges(ranges);
  std::vector<NormRange> words;
  for (const ChecksumRange& range : ranges)
    words.push_back({.begin = range.begin / 2, .count = (range.end - range.begin) / 2});
  return words;
}

// Computes checksums of ranges of vectors on a device. The kernel is in kernels/flat.cuh.
class DeviceChecksums : public Checksums {
 public:
  // `bytes` counts the device memory of this object.
  DeviceChecksums(Device& device, std::function<void()> poll, std::span<const ChecksumRange> ranges,
                  std::shared_ptr<std::int64_t> bytes)
      : device_(device),
        poll_(std::move(poll)),
        ranges_(word_ranges(ranges)),
        launches_([&] {
          std::vector<Launch> launches;
          for (std::size_t i = 0; i < ranges.size(); ++i) {
            if (launches.empty() || launches.back().values != ranges[i].values)
              launches.push_back({.values = ranges[i].values, .first = i, .count = 0, .first_block = 0, .blocks = 0});
            ++launches.back().count;
          }
          return launches;
        }()),
        blocks_([&] {
          std::int64_t blocks = 0;
          for (Launch& launch : launches_) {
            launch.first_block = blocks;
            launch.blocks = range_blocks(std::span(ranges_).subspan(launch.first, launch.count));
            blocks += launch.blocks;
          }
          return blocks;
        }()),
        table_(device, size_in_bytes<NormRange>(std::ssize(ranges_)), "the ranges of checksums"),
        partial_(device, size_in_bytes<std::uint64_t>(blocks_), "partial sums of checksums"),
        host_(device, blocks_),
        values_(ranges.size()),
        work_(device, std::move(bytes), table_.bytes() + partial_.bytes()) {
    device_.copy(table_.data(), ranges_.data(), table_.bytes(), CopyKind::to_device, device_.compute_stream());
    work_.record(device_.compute_stream());
    work_.wait(poll_);
  }

  void start() override {
    const Stream stream = device_.compute_stream();
    for (const Launch& launch : launches_)
      if (launch.blocks > 0)
        device_.launch(
            launch_of(ChecksumPartsArguments{.words = reinterpret_cast<const std::uint64_t*>(launch.values->data()),
                                             .ranges = table_.data<const NormRange>() + launch.first,
                                             .partial = partial_.data<std::uint64_t>() + launch.first_block,
                                             .count = static_cast<int>(launch.count),
                                             .blocks = launch.blocks}),
            stream);
    device_.copy(host_.data(), partial_.data(), partial_.bytes(), CopyKind::to_host, stream);
    work_.record(stream);
  }
  std::span<const std::uint64_t> values() override {
    work_.wait(poll_);
    std::ranges::fill(values_, 0);
    for (const Launch& launch : launches_)
      for (std::size_t i = launch.first; i < launch.first + launch.count; ++i) {
        const bool is_last = i + 1 == launch.first + launch.count;
        const std::int64_t end = is_last ? launch.blocks : ranges_[i + 1].first_block;
        for (std::int64_t block = ranges_[i].first_block; block < end; ++block)
          values_[i] += host_.data()[launch.first_block + block];
      }
    return values_;
  }

 private:
  // One launch computes consecutive ranges of the same vector.
  struct Launch {
    const Vector* values;
    std::size_t first, count;  // ranges
    std::int64_t first_block, blocks;
  };

  Device& device_;
  std::function<void()> poll_;
  std::vector<NormRange> ranges_;  // in words; first_block counts from the first block of the launch
  std::vector<Launch> launches_;
  std::int64_t blocks_;
  DeviceMemory table_, partial_;
  HostMemory<std::uint64_t> host_;  // partial sums of the blocks
  std::vector<std::uint64_t> values_;
  NewestWork work_;
};

class DeviceNormTotal : public NormTotal {
 public:
  DeviceNormTotal(Device& device, std::shared_ptr<std::int64_t> bytes)
      : device_(device),
        total_(device, size_in_bytes<double>(1), "a sum of norms"),
        work_(device, std::move(bytes), total_.bytes()) {}
  void add(const RangeNorms& norms, bool first, std::uintptr_t stream) override {
    launch({.norms = norms.data(),
            .total = total_.data<double>(),
            .count = static_cast<int>(norms.size()),
            .first = first},
           stream);
  }
  void store(Vector& values, std::int64_t at, std::uintptr_t stream) override {
    launch({.norms = nullptr, .total = total_.data<double>(), .count = 0, .first = false, .to = values.data() + at},
           stream);
  }

 private:
  void launch(const NormTotalArguments& arguments, std::uintptr_t handle) {
    const Stream stream = handle != 0 ? Stream{handle} : device_.compute_stream();
    device_.launch(launch_of(arguments), stream);
    work_.record(stream);
  }

  Device& device_;
  DeviceMemory total_;  // double
  NewestWork work_;
};

const DnnPlan* product_plan(Device& device, std::int64_t m, std::int64_t n, std::int64_t k, bool transposed_a,
                            bool transposed_b) {
  const DnnOperation operation{.kind = DnnKind::matmul,
                               .type = Type::fp32,
                               .math = Math::fp32,
                               .n = n,
                               .k = k,
                               .m = m,
                               .transposed_a = transposed_a,
                               .transposed_b = transposed_b,
                               .result = Type::fp32};
  std::string why;
  const DnnPlan* plan = device.plan(operation, &why);
  if (plan == nullptr)
    throw Error(cat("optimizer.kind muon: cuDNN has no product ", operation.key(), ": ", why),
                "use another optimizer.kind on this GPU, or machine.device: cpu");
  return plan;
}

// Newton-Schulz orthogonalisation on a device. cuDNN computes the products in full fp32. The kernels are
// in kernels/update.cuh.
class DeviceOrthogonalizer : public Orthogonalizer {
 public:
  // Throws Error if cuDNN has no plan for a product. `norm_bytes` counts the device memory of the norms.
  DeviceOrthogonalizer(Device& device, std::function<void()> poll, std::span<const MatrixRange> matrices,
                       std::shared_ptr<std::int64_t> norm_bytes)
      : device_(device), poll_(std::move(poll)), norm_bytes_(std::move(norm_bytes)) {
    expect_matrices(matrices);
    for (const MatrixRange& m : matrices) {
      products_.push_back(plan_products(m));
      largest_ = std::max(largest_, m.count());
      largest_gram_ = std::max(largest_gram_, m.small() * m.small());
      const auto& [matrix, gram, square, apply] = products_.back();
      for (const DnnPlan* plan : {gram, square, apply})
        workspace_bytes_ = std::max(workspace_bytes_, plan->workspace_bytes());
    }
  }
  std::int64_t bytes() const override { return size_in_bytes<float>(largest_ + 2 * largest_gram_) + workspace_bytes_; }
  void allocate() override {
    if (products_.empty()) return;
    const auto floats = [this](std::int64_t count) {
      return DeviceMemory(device_, size_in_bytes<float>(count), "Newton-Schulz");
    };
    product_ = floats(largest_);
    gram_ = floats(largest_gram_);
    square_ = floats(largest_gram_);
    workspace_ = DeviceMemory(device_, workspace_bytes_, "the workspace of Newton-Schulz");
    std::vector<ElementRange> ranges;
    for (const Products& p : products_) ranges.push_back({p.matrix.begin, p.matrix.begin + p.matrix.count()});
    norms_ = std::make_unique<DeviceRangeNorms>(device_, poll_, ranges, norm_bytes_);
  }
  void run(Vector& values) override {
    if (products_.empty()) return;
    norms_->measure(values, 0);
    const auto [ranges, count, partial, blocks] = norms_->parts();
    device_.launch(launch_of(NormalizeRangesArguments{.values = values.data(),
                                                      .ranges = ranges,
                                                      .norms = norms_->data(),
                                                      .count = count,
                                                      .blocks = blocks,
                                                      .epsilon = NewtonSchulz::epsilon}),
                   device_.compute_stream());
    for (const Products& p : products_) orthogonalize(p, values.data() + p.matrix.begin);
  }

 private:
  struct Products {
    MatrixRange matrix;
    const DnnPlan *gram, *square, *apply;
  };
  // The Gram matrix is X X^T for a wide X and X^T X for a tall one; it is [small, small].
  Products plan_products(const MatrixRange& m) const {
    const std::int64_t s = m.small();
    const bool wide = m.rows <= m.columns;
    return {m, product_plan(device_, s, s, std::max(m.rows, m.columns), !wide, wide),
            product_plan(device_, s, s, s, false, false), product_plan(device_, m.rows, m.columns, s, false, false)};
  }
  void orthogonalize(const Products& p, float* x) {
    using N = NewtonSchulz;
    const MatrixRange& m = p.matrix;
    auto* const product = product_.data<float>();
    auto* const gram = gram_.data<float>();
    auto* const square = square_.data<float>();
    for (int step = 0; step < N::steps; ++step) {
      multiply(*p.gram, x, x, gram);
      multiply(*p.square, gram, gram, square);
      blend(m.small() * m.small(), N::b, gram, N::c, square);
      if (m.rows <= m.columns)
        multiply(*p.apply, square, x, product);
      else
        multiply(*p.apply, x, square, product);
      blend(m.count(), 1, product, N::a, x);
    }
  }
  void multiply(const DnnPlan& plan, const float* a, const float* b, float* y) {
    void* const tensors[] = {const_cast<float*>(a), const_cast<float*>(b), y};
    device_.run(plan, tensors, workspace_.data(), device_.compute_stream());
  }
  void blend(std::int64_t count, float alpha, const float* x, float beta, float* y) {
    device_.launch(launch_of(BlendArguments{.x = x, .y = y, .count = count, .alpha = alpha, .beta = beta}),
                   device_.compute_stream());
  }

  Device& device_;
  std::function<void()> poll_;
  std::vector<Products> products_;
  std::shared_ptr<std::int64_t> norm_bytes_;
  std::int64_t largest_ = 0, largest_gram_ = 0, workspace_bytes_ = 0;  // elements; elements; bytes
  DeviceMemory product_, gram_, square_, workspace_;
  std::unique_ptr<DeviceRangeNorms> norms_;
};

}  // namespace

std::unique_ptr<Vector> make_device_vector(Device& device, std::int64_t size, ReducedMemory reduced,
                                           std::shared_ptr<std::int64_t> bytes) {
  return std::make_unique<DeviceVector>(device, size, std::move(reduced), std::move(bytes));
}
std::unique_ptr<NormTotal> make_device_norm_total(Device& device, std::shared_ptr<std::int64_t> bytes) {
  return std::make_unique<DeviceNormTotal>(device, std::move(bytes));
}
std::unique_ptr<Checksums> make_device_checksums(Device& device, std::function<void()> poll,
                                                 std::span<const ChecksumRange> ranges,
                                                 std::shared_ptr<std::int64_t> bytes) {
  return std::make_unique<DeviceChecksums>(device, std::move(poll), ranges, std::move(bytes));
}
std::unique_ptr<Orthogonalizer> make_device_orthogonalizer(Device& device, std::function<void()> poll,
                                                           std::span<const MatrixRange> matrices,
                                                           std::shared_ptr<std::int64_t> norm_bytes) {
  return std::make_unique<DeviceOrthogonalizer>(device, std::move(poll), matrices, std::move(norm_bytes));
}

}  // namespace ringtrain::cuda
