// Tests how CUDA's libraries are found at run time, and how plans are packed into bytes. These tests need neither a GPU
// nor CUDA.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/plan_store.h"
#include "base/error.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

// Sets an environment variable until the end of a scope.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Setting() {
    if (before_.empty())
      unsetenv(name_);
    else
      setenv(name_, before_.c_str(), 1);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::string before_;
};

class CudaLibraries : public WithFolder {
 protected:
  // Copies a real library to a name that no machine has.
  std::string place(const std::string& folder, const std::string& file) {
    std::filesystem::create_directories(path(folder));
    std::filesystem::copy_file(library_file(open_library({"libm.so.6", {}, ""})), path(folder + "/" + file));
    return path(folder);
  }
};

TEST_F(CudaLibraries, AreTakenFromTheNamedFoldersBeforeTheVariablesFolders) {
  const std::string named = place("named", "libringtrain_a.so.9"), home = place("home/lib64", "libringtrain_a.so.9");
  const Setting folders("RINGTRAIN_CUDA_LIBRARIES", "/nowhere:" + named), variable("RINGTRAIN_A_HOME", path("home"));
  void* library = open_library({"libringtrain_a.so.9", {"RINGTRAIN_A_HOME"}, ""});
  EXPECT_EQ(library_file(library), named + "/libringtrain_a.so.9");
  EXPECT_NE(library_function(library, "cos"), nullptr);
}

TEST_F(CudaLibraries, NameTheLimitThatForbidsToAskPython) {
  // The search is made once in a process, and other tests may have made it in this one.
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto search = [] {
    const rlimit one{1, 1};
    ::setrlimit(RLIMIT_NPROC, &one);  // counts for users other than root
    if (::getuid() == 0 && ::setuid(65534) != 0) std::_Exit(2);
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    python_library_folders();
    std::_Exit(0);
  };
  EXPECT_EXIT(search(), testing::ExitedWithCode(0),
              "python3, .* cannot be started: the limit of this user's processes and threads");
}

TEST_F(CudaLibraries, OfTheDriverAreNotSearchedWithPython) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto starts_python = [this](bool pip_has_it) {
    std::ofstream(path("python3")) << "#!/bin/sh\n: > '" << path("started") << "'\n";
    std::filesystem::permissions(path("python3"), std::filesystem::perms::owner_all);
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    setenv("PATH", path("").c_str(), 1);
    try_library({"libringtrain_e.so.9", {}, "", pip_has_it});
    std::_Exit(std::filesystem::exists(path("started")) ? 1 : 0);
  };
  EXPECT_EXIT(starts_python(true), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(starts_python(false), testing::ExitedWithCode(0), "");
}

TEST_F(CudaLibraries, AreFoundBelowTheirHomeVariable) {
  for (const std::string lib : {"lib64", "lib"}) {
    const std::string file = "libringtrain_" + lib + ".so.9", folder = place("toolkit/" + lib, file);
    const Setting variable("RINGTRAIN_B_HOME", path("toolkit"));
    EXPECT_EQ(library_file(open_library({file, {"RINGTRAIN_B_HOME"}, ""})), folder + "/" + file);
  }
}

TEST_F(CudaLibraries, ThatAreNowhereAreAnErrorWithEveryFolderAndTheAdvice) {
  const Setting folders("RINGTRAIN_CUDA_LIBRARIES", "/one:/two");
  const std::string error = message_of([] {
    open_library({"libringtrain_c.so.9", {"CUDA_HOME"}, "Load the module."});
  });
  for (const char* part :
       {"libringtrain_c.so.9", "/one", "/two", "LD_LIBRARY_PATH", "/usr/local/cuda/lib64", "Load the module."})
    expect_contains(error, part);
}

TEST_F(CudaLibraries, ThatAreThereAndCannotBeOpenedAreReportedInTheLoadersWords) {
  std::filesystem::create_directories(path("broken"));
  std::ofstream(path("broken/libringtrain_d.so.9")) << "no library";
  const Setting folders("RINGTRAIN_CUDA_LIBRARIES", path("broken"));
  const std::string error = message_of([] { open_library({"libringtrain_d.so.9", {}, ""}); });
  expect_contains(error, path("broken/libringtrain_d.so.9"));
  EXPECT_EQ(error.find("searched"), std::string::npos) << error;
}

TEST_F(CudaLibraries, AFunctionThatALibraryLacksIsNamedWithItsFile) {
  const std::string error = message_of([] { library_function(open_library({"libm.so.6", {}, ""}), "cudnnCreate"); });
  expect_contains(error, "libm.so.6");
  expect_contains(error, "cudnnCreate");
}

TEST(RuntimeDevice, ThatIsNotThereIsAnErrorWithAdvice) {
  if (visible_devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  const std::string error = message_of([] { make_runtime_device(0, ""); });
  expect_contains(error, "rain on the CPU.]");
  EXPECT_TRUE(visible_uuids().empty());
}

const PackedPlans plans = {
    {"conv a",
     {.found = true, .workspace_bytes = 7, .engine = "eng1_k2=3", .timed = 6, .bytes = std::string("by\ntes\0\t", 8)}},
    {"conv b", {.why = "no engine, found"}},
    {"matmul", {.found = true, .engine = "eng0"}}};

TEST(PackedPlans, ComeBackAsTheyWerePacked) {
  EXPECT_EQ(unpack(pack(plans)), plans);
}

TEST(PackedPlans, CutAnywhereGiveThePlansBeforeTheCutAndNothingElse) {
  const std::string text = pack(plans);
  std::size_t most = 0;
  for (std::size_t length = 0; length < text.size(); ++length) {
    const PackedPlans some = unpack(text.substr(0, length));
    EXPECT_LT(some.size(), plans.size()) << length;
    EXPECT_GE(some.size(), most) << length;
    most = some.size();
    for (const auto& [key, plan] : some) EXPECT_EQ(plan, plans.at(key)) << length;
  }
}

TEST(PackedPlans, OfAnotherVersionOfCudnnAreNamedOnceNoneFits) {
  const std::filesystem::path cache = std::filesystem::path(testing::TempDir()) / "plans_of_versions";
  std::filesystem::remove_all(cache);
  const auto folder = [&](const char* gpu, const char* version) { return plan_folder(cache, gpu, version); };
  const auto add_plan = [&](const std::filesystem::path& to) {
    std::filesystem::create_directories(to);
    std::ofstream(plan_file(to, 10)) << "plan";
  };
  EXPECT_EQ(folder("NVIDIA H100 80GB HBM3", "9.19.0"), cache / "NVIDIA-H100-80GB-HBM3-cudnn-9.19.0");
  EXPECT_EQ(note_about_other_versions(folder("NVIDIA H200", "9.20.0")), "");
  add_plan(folder("NVIDIA H100 80GB HBM3", "9.18.0"));
  EXPECT_EQ(note_about_other_versions(folder("NVIDIA H200", "9.20.0")), "") << "plans of another GPU";
  add_plan(folder("NVIDIA H200", "9.19.0"));
  std::filesystem::create_directories(folder("NVIDIA H200", "9.20.0"));  // an empty folder has no plans
  const std::string note = note_about_other_versions(folder("NVIDIA H200", "9.20.0"));
  EXPECT_NE(note.find("keeps plans for cuDNN 9.19.0, and this is cuDNN 9.20.0"), std::string::npos) << note;
  add_plan(folder("NVIDIA H200", "9.20.0"));
  EXPECT_EQ(note_about_other_versions(folder("NVIDIA H200", "9.20.0")), "");
  EXPECT_EQ(note_about_other_versions(""), "");
}

TEST(PackedPlans, ALineOfAnAnswerComesBackWithoutItsSeparatorInside) {
  const PlanAnswer found{.found = true, .workspace_bytes = 12, .engine = "eng1_k2=3"};
  for (const char separator : {',', '\t'}) EXPECT_EQ(parse_answer(to_line(found, separator), separator), found);
  EXPECT_EQ(to_line({.why = "a,\tb\nc"}, ','), "refused,0,a;\tb c");
  EXPECT_EQ(to_line({.why = "a,\tb\nc"}, '\t'), "refused\t0\ta, b c");
  for (const char* line : {"", "found", "found,1", "lost,1,a", "found,x,a", "found,1x,a"})
    EXPECT_THROW(parse_answer(line, ','), Error) << line;
}

}  // namespace
}  // namespace ringtrain::cuda
