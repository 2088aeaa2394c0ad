// Tests the list of keys, the page made from it, and the experiments that come with the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "tests/unit/repository.h"

namespace ringtrain {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Counts the members of an aggregate, which is the largest number of values that can initialise it.
struct Anything {
  template <class T>
  operator T() const;  // never called
};
template <class T, class... Values>
constexpr std::size_t member_count() {
  if constexpr (requires { T{Values()..., Anything()}; })
    return member_count<T, Values..., Anything>();
  else
    return sizeof...(Values);
}

TEST(ConfigSchema, NamesEveryMemberOfTheStructs) {
  const auto outer_sections = static_cast<std::size_t>(
      std::ranges::count_if(sections(), [](std::string_view section) { return section_of(section).empty(); }));
  const std::size_t members =
      member_count<Experiment>() - outer_sections + member_count<ModelConfig>() + member_count<DataConfig>() +
      member_count<BatchConfig>() + member_count<LossConfig>() + member_count<OptimizerConfig>() +
      member_count<LearningRateConfig>() + member_count<StopConfig>() + member_count<EvaluateConfig>() +
      member_count<CheckpointConfig>() + member_count<CommunicationConfig>() + member_count<RunConfig>() +
      member_count<LossScaleConfig>() + member_count<NoiseConfig>() + member_count<MachineConfig>() +
      member_count<BranchConfig>() + member_count<ParallelConfig>() + member_count<MemoryConfig>() +
      member_count<TestConfig>() + member_count<AverageConfig>() + member_count<HalfLifeConfig>() - 1;  // half_life
  EXPECT_EQ(schema().size(), members);
  std::set<std::string_view> keys;
  for (const Field& field : schema()) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key << " is listed twice";
    EXPECT_FALSE(field.meaning_.empty()) << field.key;
    EXPECT_TRUE(field.only_with_.empty() || find_field(field.only_with_) != nullptr) << field.key;
  }
}

TEST(Configs, EveryExperimentInTheRepositoryReadsAndItsRanksDivide) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(repository() / "configs"))
    if (entry.path().extension() == ".yaml") {
      const Experiment experiment = read_experiment(entry.path().string(), {});
      EXPECT_EQ(experiment.name, entry.path().stem().string());
      EXPECT_EQ(experiment.batch.global / experiment.batch.worker % 4, 0) << entry.path() << ": 1, 2, 4 ranks";
      EXPECT_EQ(contents(entry.path()).rfind("# ", 0), 0u) << entry.path() << ": source, hardware and result";
      ++count;
    }
  EXPECT_GE(count, 3) << "in " << repository() / "configs"
                      << "; RINGTRAIN_ROOT names the repository";
}

// Reads lines "# Row  key=value key=value -> result" in a file's header. Each stands for the same experiment with these
// overrides.
std::vector<std::vector<std::string>> rows_of(const std::filesystem::path& path) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream text(contents(path));
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("# Row ", 0) != 0) continue;
    std::istringstream words(line.substr(6));
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string word; words >> word && word != "->";) row.push_back(word);
  }
  return rows;
}

TEST(Configs, EveryRowOfATableReadsAndItsRanksDivide) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(repository() / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    for (const std::vector<std::string>& row : rows_of(entry.path())) {
      const Experiment experiment = read_experiment(entry.path().string(), row);
      EXPECT_EQ(experiment.batch.global / experiment.batch.worker % 4, 0) << entry.path() << ": " << row.front();
      ++count;
    }
  }
  EXPECT_GE(count, 20u);
}

TEST(Configs, ThePageOfKeysIsTheSchemas) {
  const auto page = repository() / "configs" / "README.md";
  if (std::getenv("RINGTRAIN_WRITE_PAGES") != nullptr) std::ofstream(page, std::ios::binary) << schema_markdown();
  EXPECT_TRUE(contents(page) == schema_markdown())
      << page << " is stale; run this test with RINGTRAIN_WRITE_PAGES=1 in the environment to write it anew";
}

}  // namespace
}  // namespace ringtrain
