#include "backend/cuda/program/orthogonalizer.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

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

}  // namespace

DeviceOrthogonalizer::DeviceOrthogonalizer(Device& device, std::function<void()> poll,
                                           std::span<const MatrixRange> matrices,
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

// The Gram matrix is X X^T for a wide X and X^T X for a tall one; it is [small, small].
DeviceOrthogonalizer::Products DeviceOrthogonalizer::plan_products(const MatrixRange& m) const {
  const std::int64_t s = m.small();
  const bool wide = m.rows <= m.columns;
  return {m, product_plan(device_, s, s, std::max(m.rows, m.columns), !wide, wide),
          product_plan(device_, s, s, s, false, false), product_plan(device_, m.rows, m.columns, s, false, false)};
}

std::int64_t DeviceOrthogonalizer::bytes() const {
  return (largest_ + 2 * largest_gram_) * static_cast<std::int64_t>(sizeof(float)) + workspace_bytes_;
}

void DeviceOrthogonalizer::allocate() {
  if (products_.empty()) return;
  const auto floats = [this](std::int64_t count) {
    return DeviceMemory(device_, count * static_cast<std::int64_t>(sizeof(float)), "Newton-Schulz");
  };
  product_ = floats(largest_);
  gram_ = floats(largest_gram_);
  square_ = floats(largest_gram_);
  workspace_ = DeviceMemory(device_, workspace_bytes_, "the workspace of Newton-Schulz");
  std::vector<ElementRange> ranges;
  for (const Products& p : products_) ranges.push_back({p.matrix.begin, p.matrix.begin + p.matrix.count()});
  norms_ = std::make_unique<DeviceRangeNorms>(device_, poll_, ranges, norm_bytes_);
}

void DeviceOrthogonalizer::run(Vector& values) {
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

void DeviceOrthogonalizer::orthogonalize(const Products& p, float* x) {
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

void DeviceOrthogonalizer::multiply(const DnnPlan& plan, const float* a, const float* b, float* y) {
  void* const tensors[] = {const_cast<float*>(a), const_cast<float*>(b), y};
  device_.run(plan, tensors, workspace_.data(), device_.compute_stream());
}

void DeviceOrthogonalizer::blend(std::int64_t count, float alpha, const float* x, float beta, float* y) {
  device_.launch(launch_of(BlendArguments{.x = x, .y = y, .count = count, .alpha = alpha, .beta = beta}),
                 device_.compute_stream());
}

}  // namespace ringtrain::cuda
