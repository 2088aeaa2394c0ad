// Tests the tables that are recorded for several kinds of GPU.
#include "tests/unit/recorded_rows.h"

#include <gtest/gtest.h>

#include "tests/unit/cuda_models.h"
#include "tests/unit/repository.h"
#include "tests/unit/with_folder.h"

namespace ringtrain::cuda {
namespace {

using Rows = std::vector<std::string>;

class RecordedRows : public WithFolder {};

TEST_F(RecordedRows, ARowNamesItsGpusAndLeavesOutWhatTheRowAboveSays) {
  const std::string file = path("table.csv"), header = "gpus,model,layer,way";
  record_rows(file, header, "h200", "9.19,a", {"9.19,a,cnn,one,fused", "9.19,a,cnn,two,plain", "9.18,a,cnn,old,plain"});
  record_rows(file, header, "b200", "9.19,b", {"9.19,b,cnn,one,fused", "9.19,b,cnn,two,fused"});
  EXPECT_EQ(read_lines(file), (Rows{"# b200: 9.19,b", "# h200: 9.19,a", header, "b200 h200,cnn,one,fused",
                                    "b200,,two,fused", "h200,,,plain"}));
  EXPECT_EQ(recorded_rows(file, "h200"), (Rows{"9.19,a,cnn,one,fused", "9.19,a,cnn,two,plain"}));
  EXPECT_EQ(recorded_rows(file, "b200"), (Rows{"9.19,b,cnn,one,fused", "9.19,b,cnn,two,fused"}));
  EXPECT_EQ(recorded_rows(file, "a100"), Rows{});
  EXPECT_EQ(recorded_rows(path("none.csv"), "h200"), Rows{});

  record_rows(file, header, "h200", "", {"cnn,one,plain"});
  EXPECT_EQ(recorded_rows(file, "h200"), Rows{"cnn,one,plain"});
  EXPECT_EQ(recorded_rows(file, "b200"), (Rows{"9.19,b,cnn,one,fused", "9.19,b,cnn,two,fused"}));
}

TEST_F(RecordedRows, TheRecordedTablesAreAsTheyWouldBeWrittenAgain) {
  for (const auto& [name, header] : {std::pair{"plans", plans_header}, std::pair{"fusions", fusion_header}}) {
    const std::string recorded = repository() / recorded_folder / cat(name, ".csv"), copy = path(name);
    const RecordedTable table = read_recorded(recorded);
    for (const char* gpu : {"a100", "b200", "h100", "h200"}) {
      const auto prefix = table.prefixes.find(gpu);
      const Rows rows = recorded_rows(recorded, gpu);
      EXPECT_GT(rows.size(), 300u) << gpu;
      record_rows(copy, header, gpu, prefix == table.prefixes.end() ? "" : prefix->second, rows);
    }
    EXPECT_EQ(read_lines(copy), read_lines(recorded)) << name;
  }
}

}  // namespace
}  // namespace ringtrain::cuda
