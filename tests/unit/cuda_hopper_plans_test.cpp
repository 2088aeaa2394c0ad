// Tests the library of convolutions for Hopper through the device's interface: the questions it gets, its answers on
// the host, and how its results are compared with cuDNN's before a layer uses it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/program/fusion.h"
#include "backend/cuda/program/proof.h"
#include "base/random.h"
#include "base/small_floats.h"
#include "tests/emulation/host_device.h"
#include "tests/emulation/reference_dnn.h"
#include "tests/unit/hopper_operations.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_environment.h"

namespace ringtrain::cuda {
namespace {

const hopper::Library* library(std::string* why) {
  if (std::getenv("RINGTRAIN_HOPPER_LIBRARY") == nullptr)
    setenv("RINGTRAIN_HOPPER_LIBRARY", std::filesystem::absolute(repository() / "bin" / hopper::library_file).c_str(),
           0);
  return hopper::Library::find(why);
}

DnnOperation convolution(Type type, std::int64_t groups) {
  return {.kind = DnnKind::convolution,
          .type = type,
          .math = Math::half,
          .n = 2 * groups,
          .c = 32,
          .h = 8,
          .w = 8,
          .k = 40,
          .r = 3,
          .stride = 1,
          .padding = 1,
          .epilogue = Epilogue::sums,
          .engine = Engine::hopper,
          .groups = groups};
}

TEST(CudaHopperPlans, KeysSayTheEngineAndTheGroups) {
  for (const DnnOperation& o : hopper_works(convolution(Type::bf16, 3))) {
    EXPECT_EQ(parse_operation(o.key()), o) << o.key();
    EXPECT_NE(o.key().find("+hopper"), std::string::npos);
  }
  EXPECT_NE(convolution(Type::bf16, 3).key(), convolution(Type::bf16, 1).key());
}

// One launch over all groups equals one launch of cuDNN's operation for each group.
TEST(CudaHopperPlans, ALaunchOverGroupsIsOneLaunchPerGroup) {
  constexpr std::int64_t groups = 3;
  for (const DnnOperation& whole : hopper_works(convolution(Type::fp16, groups))) {
    if (whole.kind == DnnKind::weight_gradient) continue;
    DnnOperation part = whole;
    part.engine = Engine::general;
    part.n /= groups;
    part.groups = 1;
    std::vector<std::vector<std::byte>> memory, parts;
    std::vector<void*> addresses;
    for (const DnnTensor& t : whole.tensors()) {
      memory.emplace_back(static_cast<std::size_t>(t.elements() * bytes_of(t.type)));
      for (std::int64_t i = 0; i < t.elements(); ++i) {
        const auto value =
            static_cast<float>(random_normal(static_cast<std::uint64_t>(t.role) + 5, static_cast<std::uint64_t>(i)));
        if (t.type == Type::fp32)
          reinterpret_cast<float*>(memory.back().data())[i] = value;
        else
          reinterpret_cast<std::uint16_t*>(memory.back().data())[i] = to_fp16(value);
      }
      addresses.push_back(memory.back().data());
    }
    parts = memory;
    compute(whole, addresses, 1);
    const std::vector<DnnTensor> described = whole.tensors(), of_part = part.tensors();
    std::size_t sums = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      std::vector<void*> of_group;
      for (const DnnTensor& t : of_part) {
        const bool other = t.role == DnnRole::sum_other;
        std::size_t i = 0;
        while (described[i].role != (other ? DnnRole::sum : t.role)) ++i;
        if (t.role == DnnRole::sum) sums = i;
        std::int64_t step = t.role == DnnRole::w ? 0 : t.elements() * bytes_of(t.type);
        if (other || t.role == DnnRole::sum) step *= 2;
        of_group.push_back(parts[i].data() + g * step + (other ? step / 2 : 0));
      }
      compute(part, of_group, 1);
    }
    EXPECT_TRUE(memory == parts) << whole.key();
    EXPECT_EQ(described[sums].elements(), 2 * groups * of_part.back().elements());
  }
}

TEST(CudaHopperPlans, ADeviceWithoutTheLibraryOrOfAnotherKindRefuses) {
  std::string why;
  const WithEnvironment elsewhere(Variables{{"RINGTRAIN_HOPPER_LIBRARY", "/nowhere/libringtrain-hopper.so"}});
  EXPECT_EQ(hopper::Plans(90).find(convolution(Type::bf16, 1), &why), nullptr);
  EXPECT_EQ(why, "there is no /nowhere/libringtrain-hopper.so (make hopper builds it)");
  {
    const WithEnvironment off(Variables{{"RINGTRAIN_HOPPER_LIBRARY", "none"}});
    EXPECT_EQ(hopper::Plans(90).find(convolution(Type::bf16, 1), &why), nullptr);
    EXPECT_EQ(why, "switched off by RINGTRAIN_HOPPER_LIBRARY");
  }
  EXPECT_EQ(hopper::Plans(80).find(convolution(Type::bf16, 1), &why), nullptr);
  EXPECT_EQ(why, "kernels for compute capability 9.0 do not run on 8.0");
  DnnOperation o = convolution(Type::bf16, 1);
  o.prologue = Prologue::scale_bias_relu;
  EXPECT_EQ(hopper::Plans(90).find(o, &why), nullptr);
  EXPECT_EQ(why, "the library for Hopper has no kernel of this kind");
}

TEST(CudaHopperPlans, TheLibraryAnswersOnTheHostAsRecorded) {
  std::string why;
  if (library(&why) == nullptr) GTEST_SKIP() << why;
  std::ifstream in(repository() / recorded_folder / "hopper_plans.csv");
  std::set<std::string> recorded, found;
  for (std::string line; std::getline(in, line);)
    if (line != hopper_plans_header) recorded.insert(line);
  for (const DnnOperation& o : hopper_operations(repository() / recorded_folder / "plans.csv"))
    found.insert(hopper_line(o));
  EXPECT_GT(found.size(), 200u);
  EXPECT_EQ(recorded, found) << "write the record again: build/bench/hopper_plans " << recorded_folder;
}

TEST(CudaHopperPlans, TheLibraryHasAtMostTwelveKernelsAndSaysWhy) {
  std::string why;
  const hopper::Library* const found = library(&why);
  if (found == nullptr) GTEST_SKIP() << why;
  EXPECT_LE(found->instances().size(), 12u);
  std::set<std::pair<hopper::Work, hopper::Element>> kinds;
  for (const hopper::Description& d : found->instances()) {
    kinds.insert({d.work, d.type});
    EXPECT_LE(d.shared_bytes, 227 * 1024) << d.name;
  }
  EXPECT_EQ(kinds.size(), 8u);
  // Without a GPU a launch throws Error.
  DnnOperation o = convolution(Type::bf16, 1);
  const auto problem = hopper::problem_of(o, nullptr);
  EXPECT_THROW(found->launch(0, *problem, {}, nullptr, nullptr), Error);
}

// ---- The comparison before a layer uses a convolution of the library -----------------------------------------------

// Without a driver nobody makes tensor maps. CUTLASS would launch its kernels with empty ones.
TEST(CudaHopperPlans, ALaunchWhoseTensorMapIsRefusedIsAnError) {
  std::string why;
  const hopper::Library* found = library(&why);
  if (found == nullptr) GTEST_SKIP() << why;
  if (visible_devices() > 0) GTEST_SKIP() << "the driver of this machine makes tensor maps";
  std::vector<float> memory(1024);
  for (const DnnOperation& o : hopper_works(convolution(Type::bf16, 1))) {
    const std::optional<hopper::Problem> problem = hopper::problem_of(o, &why);
    ASSERT_TRUE(problem) << why;
    const auto choice = found->choose(*problem, &why);
    ASSERT_TRUE(choice) << o.key() << ": " << why;
    std::size_t space = memory.size() * sizeof(float);
    void* at = memory.data();
    std::align(256, 1024, at, space);
    const std::vector<void*> addresses(o.tensors().size(), at);
    try {
      found->launch(choice->instance, *problem, hopper::tensors_of(o, addresses), at, nullptr);
      ADD_FAILURE() << o.key() << " was launched";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("tensor map"), std::string::npos) << o.key() << ": " << error.what();
    }
  }
}

// Operations that are taken only after a proof: those of the library, and weight gradients that normalise their input.
std::vector<DnnOperation> works_to_prove(Type type) {
  std::vector<DnnOperation> all = hopper_works(convolution(type, 2));
  for (const char* size : {"n2 c64 14x14 k64 r1 s1 p0", "n2 c16 9x9 k8 r3 s2 p1"})
    all.push_back(parse_operation(cat("wgrad ", type_name(type), " ", size, " +scale_bias_relu +specialised")));
  return all;
}

TEST(CudaHopperPlans, RightResultsPassTheComparisonWithPlainOperations) {
  for (const Type type : {Type::bf16, Type::fp16})
    for (const DnnOperation& o : works_to_prove(type)) {
      HostDevice device;
      EXPECT_EQ(difference_from_plain(device, o), "") << o.key();
    }
}

// The device loses the launch, so the results are missing. The comparison must find this.
TEST(CudaHopperPlans, WrongResultsDoNotPassIt) {
  for (const DnnOperation& o : works_to_prove(Type::bf16)) {
    HostDevice device;
    device.skip = [](const Call& call) {
      return call.name.find("+hopper") != std::string::npos || call.name.find("+specialised") != std::string::npos;
    };
    EXPECT_NE(difference_from_plain(device, o).find("is 0"), std::string::npos) << o.key();
  }
}

}  // namespace
}  // namespace ringtrain::cuda
