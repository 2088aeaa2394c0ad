// The team of ranks that share a group of batch norm which is larger than one rank's pass. A program that is compiled
// for such groups exchanges a few numbers per channel with its team during its passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace ringtrain {

// Each rank has an equal part of the group's samples.
class NormTeam {
 public:
  virtual ~NormTeam() = default;
  virtual int rank() const = 0;  // this rank's place in the order of the group's samples
  virtual int size() const = 0;
  // `parts` is [size][n]. This rank has filled its own part; the call fills the others. It calls `poll`, unless that is
  // empty, while it waits. Collective. Throws the error of another rank.
  virtual void gather(std::span<double> parts, const std::function<void()>& poll) = 0;
};

// A team whose ranks compute on devices. `host` does the exchanges in host memory.
class DeviceNormTeam : public NormTeam {
 public:
  explicit DeviceNormTeam(std::unique_ptr<NormTeam> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void gather(std::span<double> parts, const std::function<void()>& poll) override { host_->gather(parts, poll); }
  // `parts` is [size][n] in the device's memory. Earlier work in `stream` (a stream of the device) has filled this
  // rank's own part. Later work in the stream finds all parts. Collective. It must not be captured. Throws the error of
  // another rank.
  virtual void gather_on_device(std::span<float> parts, std::uintptr_t stream) = 0;

 protected:
  std::unique_ptr<NormTeam> host_;
};

}  // namespace ringtrain
