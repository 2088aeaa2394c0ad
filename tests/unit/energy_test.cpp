// Tests energy counters in a folder that has the layout of Linux's folder /sys/class/powercap.
#include "run/energy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "run/run_record.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;
using Joules = std::map<std::string, double>;

class Energy : public ::testing::Test {
 protected:
  Energy() : folder_(fs::temp_directory_path() / ("energy-" + std::to_string(::getpid()))) {}
  ~Energy() override { fs::remove_all(folder_); }

  void zone(const std::string& place, const std::string& name, std::int64_t microjoules) {
    fs::create_directories(folder_ / place);
    std::ofstream(folder_ / place / "name") << name << '\n';
    std::ofstream(folder_ / place / "max_energy_range_uj") << 262143328850 << '\n';
    set(place, microjoules);
  }
  void set(const std::string& place, std::int64_t microjoules) {
    std::ofstream(folder_ / place / "energy_uj") << microjoules << '\n';
  }

  fs::path folder_;
};

TEST_F(Energy, CountsPackagesAndTheirMemoryOnce) {
  zone("intel-rapl:0", "package-0", 5'000'000);
  zone("intel-rapl:0/intel-rapl:0:0", "core", 1'000'000);
  zone("intel-rapl:0/intel-rapl:0:1", "dram", 7'000'000);
  zone("intel-rapl:1", "package-1", 0);
  zone("intel-rapl:2", "psys", 100'000'000);
  zone("intel-rapl-mmio:0", "package-0", 5'000'000);
  EnergyMeter meter(folder_.string());
  EXPECT_EQ(meter.joules(), (Joules{{"package-0", 0}, {"package-0 dram", 0}, {"package-1", 0}}));
  set("intel-rapl:0", 8'500'000);
  set("intel-rapl:0/intel-rapl:0:0", 9'000'000);
  set("intel-rapl:0/intel-rapl:0:1", 7'250'000);
  set("intel-rapl:2", 900'000'000);
  set("intel-rapl-mmio:0", 8'500'000);
  EXPECT_EQ(meter.joules(), (Joules{{"package-0", 3.5}, {"package-0 dram", 0.25}, {"package-1", 0}}));
}

TEST_F(Energy, GoesOnWhereACounterBeginsAgain) {
  zone("intel-rapl:0", "package-0", 262'143'000'000);
  EnergyMeter meter(folder_.string());
  set("intel-rapl:0", 671'150);
  EXPECT_NEAR(meter.joules()["package-0"], 1.0, 1e-9);
  set("intel-rapl:0", 2'671'150);
  EXPECT_NEAR(meter.joules()["package-0"], 3.0, 1e-9);
}

TEST_F(Energy, HasNothingWithoutReadableCounters) {
  EXPECT_TRUE(EnergyMeter(folder_.string()).joules().empty());
  fs::create_directories(folder_ / "intel-rapl:0");
  std::ofstream(folder_ / "intel-rapl:0" / "name") << "package-0\n";
  EXPECT_TRUE(EnergyMeter(folder_.string()).joules().empty());
}

TEST_F(Energy, StandsInTheRecordOfItsStart) {
  fs::create_directories(folder_);
  const auto starts = [&] {
    std::ifstream in(folder_ / "run.json");
    return nlohmann::json::parse(in)["starts"];
  };
  record_start(folder_.string(), {});
  record_end(folder_.string(), {.energy_joules = {{"package-0", 12.5}}});
  record_start(folder_.string(), {});
  record_end(folder_.string(), {});
  EXPECT_EQ(starts()[0]["energy_joules"], (nlohmann::json{{"package-0", 12.5}}));
  EXPECT_FALSE(starts()[1].contains("energy_joules"));
}

}  // namespace
}  // namespace ringtrain
