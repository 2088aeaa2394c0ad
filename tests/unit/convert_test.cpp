// Tests the converters: cleaning, encoding and splitting. The verifier must accept the files that they write.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"
#include "data/dataset.h"
#include "data/hdf5.h"
#include "data/text_dataset.h"
#include "data_prep/common/shard_writer.h"
#include "data_prep/tables/layout.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "data_prep/verify.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class Convert : public WithFolder {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  NamesOptions names(const std::string& content, const std::string& name = "names.txt") const {
    NamesOptions options;
    options.input.path = file(name, content);
    options.out = path("out");
    return options;
  }
  NamesReport convert(const NamesOptions& options) {
    log_.str("");
    return convert_names(options, log_);
  }
  // Returns all rows of a split, decoded and sorted.
  std::vector<std::string> rows(const std::string& split) const {
    const TextDataset dataset(read_dataset_index(path("out-") + split));
    const DatasetIndex& index = dataset.index();
    std::vector<std::string> result;
    std::vector<std::uint8_t> row(static_cast<std::size_t>(index.text.context_length + 1));
    for (std::int64_t i = 0; i < index.total; ++i) {
      dataset.read_row(i, row);
      std::string text;
      for (const std::uint8_t id : row) text += index.text.vocabulary.at(id);
      result.push_back(text);
    }
    std::sort(result.begin(), result.end());
    return result;
  }
  std::vector<std::string> kept(const NamesReport& report) const {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < report.clean.names.size(); ++i) {
      for (std::uint64_t n = 0; n < report.clean.names.count(i); ++n) result.emplace_back(report.clean.names.name(i));
    }
    return result;
  }
  void expect_no_faults() const {
    const Verification result = verify_dataset(path("out"));
    EXPECT_TRUE(result.faults.empty()) << result.faults.front();
  }

  std::ostringstream log_;
};

using Strings = std::vector<std::string>;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Convert, BellaBecomesTheRowsOfTheStudy) {
  NamesOptions options = names("Bella\n");
  options.alphabet = "study31";
  const NamesReport report = convert(options);
  EXPECT_EQ(report.train.samples, 6);
  EXPECT_EQ(rows("train"), (Strings{"********b", "*******be", "******bel", "*****bell", "****bella", "***bella+"}));
  const TextDataset dataset(read_dataset_index(path("out-train")));
  std::set<std::vector<std::uint8_t>> found;
  for (std::int64_t i = 0; i < 6; ++i) {
    std::vector<std::uint8_t> row(9);
    dataset.read_row(i, row);
    found.insert(row);
  }
  // The ids are '*' 0, '+' 1, a 2, b 3, ... z 27, '-' 28, '.' 29, ' ' 30.
  EXPECT_EQ(found, (std::set<std::vector<std::uint8_t>>{{0, 0, 0, 0, 0, 0, 0, 0, 3},
                                                        {0, 0, 0, 0, 0, 0, 0, 3, 6},
                                                        {0, 0, 0, 0, 0, 0, 3, 6, 13},
                                                        {0, 0, 0, 0, 0, 3, 6, 13, 13},
                                                        {0, 0, 0, 0, 3, 6, 13, 13, 2},
                                                        {0, 0, 0, 3, 6, 13, 13, 2, 1}}));
  expect_no_faults();
}

TEST_F(Convert, LongNamesKeepTheLastNineSymbols) {
  NamesOptions options = names("Mr. O-Reilly Zed\n");
  options.alphabet = "study31";
  convert(options);
  const Strings all = rows("train");
  EXPECT_EQ(all.size(), 17u);
  EXPECT_EQ(std::count(all.begin(), all.end(), "eilly zed"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "illy zed+"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "mr. o-rei"), 1);
  expect_no_faults();
}

TEST_F(Convert, RowsKeepTheirMultiplicity) {
  NamesOptions options = names("Al\nBo\nAl\nAL\n");
  options.validation = 0;
  const NamesReport report = convert(options);
  EXPECT_EQ(report.train.samples, 12);
  const Strings all = rows("train");
  EXPECT_EQ(std::count(all.begin(), all.end(), "******al+"), 3);
  EXPECT_EQ(std::count(all.begin(), all.end(), "******bo+"), 1);
  expect_no_faults();
}

TEST_F(Convert, StudyAlphabetDropsNamesByReasonAndSaysSo) {
  NamesOptions options = names(
      "Rex\n\n  \nR2-D2\nZo\xC3\xAB\nbad\xFF"
      "byte\nMax*\nA+\n Bo \n" +
      std::string(300, 'a') + "\n");
  options.alphabet = "study31";
  options.validation = 0;
  const NamesReport report = convert(options);
  EXPECT_EQ(kept(report), (Strings{"bo", "rex"}));
  EXPECT_EQ(report.clean.read, 10u);
  EXPECT_EQ(report.clean.dropped.at("empty").count, 2u);
  EXPECT_EQ(report.clean.dropped.at("symbol outside the alphabet").count, 4u);
  EXPECT_EQ(report.clean.dropped.at("not valid UTF-8").count, 1u);
  EXPECT_EQ(report.clean.dropped.at("longer than 100 symbols").count, 1u);
  expect_contains(log_.str(), "dropped     4 symbol outside the alphabet, such as 'R2-D2', 'Zo\xC3\xAB', 'Max*'");
}

TEST_F(Convert, OtherAlphabetsAreFoundAndLowerCased) {
  NamesOptions options =
      names("\xD0\x98\xD0\xB2\xD0\xB0\xD0\xBD\n\xCE\x95\xCE\xBB\xCE\xAD\xCE\xBD\xCE\xB7\n\xC3\x89mile\n");
  options.validation = 0;
  const NamesReport report = convert(options);  // Ivan in Cyrillic, Eleni in Greek, Emile with an accent
  EXPECT_EQ(kept(report),
            (Strings{"\xC3\xA9mile", "\xCE\xB5\xCE\xBB\xCE\xAD\xCE\xBD\xCE\xB7", "\xD0\xB8\xD0\xB2\xD0\xB0\xD0\xBD"}));
  EXPECT_EQ(report.clean.alphabet.name(), "auto");
  EXPECT_EQ(report.clean.alphabet.vocabulary()[0], "<blank>");
  const Strings all = rows("train");
  EXPECT_EQ(std::count(all.begin(), all.end(), "<blank><blank><blank><blank>\xD0\xB8\xD0\xB2\xD0\xB0\xD0\xBD<stop>"),
            1);
  expect_no_faults();
}

TEST_F(Convert, StarAndPlusAreOrdinarySymbolsInAuto) {
  NamesOptions options = names("A*\nB+\n");
  options.alphabet = "auto";
  options.validation = 0;
  convert(options);
  const Strings all = rows("train");
  EXPECT_EQ(std::count(all.begin(), all.end(), "<blank><blank><blank><blank><blank><blank>a*<stop>"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "<blank><blank><blank><blank><blank><blank>b+<stop>"), 1);
  EXPECT_EQ(read_known_names(read_dataset_index(path("out-train"))), (Strings{"a*", "b+"}));
  expect_no_faults();
}

TEST_F(Convert, CaseIsKeptWhenAskedFor) {
  NamesOptions options = names("Bella\nbella\n");
  options.keep_case = true;
  options.validation = 0;
  EXPECT_EQ(kept(convert(options)), (Strings{"Bella", "bella"}));
  options.alphabet = "study31";
  options.force = true;
  expect_contains(message_of([&] { convert(options); }), "no capital letters");
}

TEST_F(Convert, LinesMayEndAsOnWindowsOrNotAtAllAndHoldAnything) {
  NamesOptions options =
      names(std::string("\xEF\xBB\xBF"
                        "Ann\r\nBob\r\nnul\0byte\r\nCid",
                        26));
  options.validation = 0;
  const NamesReport report = convert(options);
  EXPECT_EQ(kept(report), (Strings{"ann", "bob", "cid"}));
  EXPECT_EQ(report.clean.dropped.at("control character").count, 1u);
}

TEST_F(Convert, AHugeLineIsOneNameThatIsTooLong) {
  NamesOptions options = names("Ann\n" + std::string(5 << 20, 'x') + "\nBob");
  options.validation = 0;
  const NamesReport report = convert(options);
  EXPECT_EQ(kept(report), (Strings{"ann", "bob"}));
  EXPECT_EQ(report.clean.dropped.at("longer than 100 symbols").count, 1u);
}

TEST_F(Convert, CsvFollowsRfc4180) {
  NamesOptions options = names(
      "\xEF\xBB\xBFid,\"Animal's Name\",note\r\n1,\"Bo, the "
      "\"\"Dog\"\"\",x\r\n2,\"two\nlines\",y\r\n3,,z\r\n4\r\n\r\n5,Ann,\"\"\r\n",
      "pets.csv");
  options.validation = 0;
  options.alphabet = "auto";
  const NamesReport report = convert(options);
  EXPECT_EQ(report.clean.source.column, "Animal's Name");
  EXPECT_EQ(kept(report), (Strings{"ann", "bo, the \"dog\""}));
  EXPECT_EQ(report.clean.dropped.at("control character").count, 1u);
  EXPECT_EQ(report.clean.dropped.at("empty").count, 1u);
  EXPECT_EQ(report.clean.dropped.at("record without that column").count, 1u);
  EXPECT_EQ(report.clean.dropped.at("blank line").count, 1u);
}

TEST_F(Convert, CsvColumnsAreGuessedOrListed) {
  const Strings pets = {"Owner Name", "Pet Name", "Age"};
  expect_contains(message_of([&] { choose_column(pets, "", "a.csv"); }),
                  "a.csv: more than one column contains 'name': 'Owner Name' (number 1), 'Pet Name' (number 2)");
  expect_contains(message_of([&] { choose_column({"a", "b"}, "", "a.csv"); }), "no column is called 'name'");
  expect_contains(message_of([&] { choose_column(pets, "Pets", "a.csv"); }), "no column 'Pets'; the columns are");
  EXPECT_EQ(choose_column(pets, "pet name", "a.csv"), 1u);
  EXPECT_EQ(choose_column({"Owner Name", "NAME"}, "", "a.csv"), 1u);
  expect_contains(message_of([&] { convert(names("name,x\n\"open,1\nBo,2\n", "open.csv")); }),
                  "line 2: a quoted field never ends");
  expect_contains(message_of([&] { convert(names("", "empty.csv")); }), "is empty; expected a header");
  NamesOptions semicolons = names("Vorname;Alter\nUwe;3\n", "de.csv");
  EXPECT_EQ(kept(convert(semicolons)), (Strings{"uwe"}));
}

TEST_F(Convert, AnExperimentCanNameWhatOutNames) {
  const auto refusal = [&](const std::string& name) {
    return message_of([&] { OutputFiles({path(name + "-train"), path(name + "-validation")}, false); });
  };
  for (const char* good : {"a b", "10$", "a-b", "~"}) EXPECT_EQ(refusal(good), "(no error)") << good;
  expect_contains(refusal("two\nlines"), "which has a line end or another control character");
  for (const char* name : {"$HOME", "a${HOME}", "$NOT_SET"})
    expect_contains(refusal(name), "whose ~ or $ would be replaced where an experiment names the data");
  expect_contains(refusal("-x"), "/-x', and names that begin with '-' are taken for options");
  for (const char* folder : {"", ".", ".."}) expect_contains(refusal(folder), "--out ends in a folder");
}

TEST_F(Convert, NothingLeftIsAnErrorThatSaysWhy) {
  expect_contains(message_of([&] { convert(names("")); }), "no names are left (0 read)");
  expect_contains(message_of([&] { convert(names("\n\n")); }), "dropped: 2 empty");
  NamesOptions options = names("\xCE\x95\xCE\xBB\n");
  options.alphabet = "study31";
  expect_contains(message_of([&] { convert(options); }), "use --alphabet auto");
  EXPECT_TRUE(fs::is_empty(folder_) || !fs::exists(path("out-train-00000-of-00002.h5")));
  expect_contains(message_of([&] {
                    convert(
                        names("\xFF\xFE"
                              "A",
                              "utf16.txt"));
                  }),
                  "is UTF-16");
  options.input.path = path("none.txt");
  expect_contains(message_of([&] { convert(options); }), "none.txt: cannot open: No such file or directory");
  options.input.path = folder_.string();
  expect_contains(message_of([&] { convert(options); }), "is a directory");
}

TEST_F(Convert, OneNameTrainsWithoutValidation) {
  NamesOptions options = names("Bo\nBo\n");
  EXPECT_EQ(convert(options).validation.samples, 0);
  expect_contains(log_.str(), "one distinct name cannot be split");
  EXPECT_FALSE(fs::exists(path("out-validation-00000-of-00002.h5")));
  expect_no_faults();
  options.validation = 0.1;
  options.force = true;
  expect_contains(message_of([&] { convert(options); }), "only one distinct name");
}

TEST_F(Convert, TwoNamesGiveOneToEachSplit) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    NameTable table;
    table.add("al");
    table.add("bo");
    const std::vector<bool> held = hold_out(table, seed, 0.1);
    EXPECT_NE(held[0], held[1]);
  }
}

TEST_F(Convert, MoreSymbolsThanFitAreAnErrorOrDropped) {
  std::string content;
  for (std::uint32_t code = 0x4E00; code < 0x4E00 + 300; ++code) {
    content += encode_symbol(code) + (code < 0x4E00 + 200 ? encode_symbol(code) : "") + "\n";
  }
  NamesOptions options = names(content);
  expect_contains(message_of([&] { convert(options); }), "300 different symbols; at most 252 fit");
  options.drop_rare = true;
  const NamesReport report = convert(options);
  EXPECT_EQ(report.clean.kept, 252u);
  EXPECT_EQ(report.clean.alphabet.vocabulary().size(), 254u);
  EXPECT_EQ(report.clean.dropped.at("rare symbol").count, 48u);
  expect_no_faults();
}

std::string many_names() {
  std::string content;
  for (int i = 0; i < 2000; ++i) {
    std::string name;
    for (int n = i; n > 0; n /= 13) name += static_cast<char>('a' + n % 13);
    for (int copy = 0; copy <= i % 3; ++copy) content += name + "x\n";
  }
  return content;
}

TEST_F(Convert, TheSplitIsByDistinctNameAndAboutTheAskedShare) {
  const NamesReport report = convert(names(many_names()));
  const double share = static_cast<double>(report.validation.names) / 2000;
  EXPECT_NEAR(share, 0.1, 0.03);
  EXPECT_EQ(report.train.names + report.validation.names, 2000);
  std::set<std::string> whole[2];
  for (const std::string split : {"train", "validation"}) {
    for (const std::string& row : rows(split)) {
      if (row.back() == '+') whole[split == "validation"].insert(row);
    }
  }
  EXPECT_EQ(whole[0].size(), static_cast<std::size_t>(report.train.names));
  EXPECT_EQ(whole[1].size(), static_cast<std::size_t>(report.validation.names));
  for (const std::string& name : whole[1]) EXPECT_FALSE(whole[0].contains(name)) << name;
  EXPECT_EQ(read_known_names(read_dataset_index(path("out-train"))).size(), 2000u);
  EXPECT_EQ(read_known_names(read_dataset_index(path("out-validation"))).size(), 2000u);
  expect_no_faults();
}

TEST_F(Convert, TheSameInputInAnyOrderGivesTheSameBytes) {
  convert(names(many_names()));
  const std::string train = bytes_of(path("out-train-00001-of-00002.h5"));
  std::istringstream in(many_names());
  Strings lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::string reversed;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) reversed += *line + "\n";
  NamesOptions options = names(reversed);
  options.force = true;
  const std::string uuid = convert(options).dataset_uuid;
  EXPECT_TRUE(train == bytes_of(path("out-train-00001-of-00002.h5")));
  options.seed = 2;
  EXPECT_NE(convert(options).dataset_uuid, uuid);
  EXPECT_FALSE(train == bytes_of(path("out-train-00001-of-00002.h5")));
}

TEST_F(Convert, TheNumberOfShardsDoesNotChangeTheDataSet) {
  NamesOptions options = names(many_names());
  options.force = true;
  std::vector<std::vector<std::uint8_t>> sequences;
  for (const std::int64_t shards : {1, 2, 7}) {
    options.shards = shards;
    convert(options);  // must delete the earlier files, or the index would find them mixed
    const TextDataset dataset(read_dataset_index(path("out-train")));
    EXPECT_EQ(dataset.index().shards.size(), static_cast<std::size_t>(shards));
    std::vector<std::uint8_t> all(static_cast<std::size_t>(dataset.index().total * 9));
    dataset.read_text(0, all);
    sequences.push_back(all);
    expect_no_faults();
  }
  EXPECT_EQ(sequences[0], sequences[1]);
  EXPECT_EQ(sequences[0], sequences[2]);
}

TEST_F(Convert, ExistingFilesAreOnlyOverwrittenByForceAndLeftoversAreRemoved) {
  NamesOptions options = names("Ann\nBob\n");
  convert(options);
  expect_contains(message_of([&] { convert(options); }), "out-train-00000-of-00002.h5: exists already [choose another");
  std::ofstream(path("out-train-00003-of-00009.h5.tmp")) << "left over";
  std::ofstream(path("other-train-00003-of-00009.h5.tmp")) << "another's";
  options.force = true;
  convert(options);
  EXPECT_FALSE(fs::exists(path("out-train-00003-of-00009.h5.tmp")));
  EXPECT_TRUE(fs::exists(path("other-train-00003-of-00009.h5.tmp")));
}

TEST_F(Convert, AFailedConversionLeavesTheOldFilesAndNoTemporaries) {
  convert(names("Ann\nBob\n"));
  {
    OutputFiles files({path("out-train")}, true);
    std::ofstream(files.add(path("out-train-00000-of-00001.h5"))) << "half";
  }  // no commit, as when an exception is thrown
  EXPECT_FALSE(fs::exists(path("out-train-00000-of-00001.h5.tmp")));
  expect_no_faults();
}

TEST_F(Convert, RunningTextIsSplitAtItsEnd) {
  TextOptions options;
  options.input = file("t.txt",
                       "\xEF\xBB\xBF"
                       "abcde\r\nfgh\xC3\xA9jklmnopqrst");
  options.out = path("out");
  options.validation = 0.25;
  options.shards = 3;
  const TextReport report = convert_text(options, log_);
  EXPECT_EQ(report.train_characters, 16);
  EXPECT_EQ(report.validation_characters, 5);
  const auto text_of = [&](const std::string& split) {
    const TextDataset dataset(read_dataset_index(path("out-") + split));
    EXPECT_TRUE(dataset.index().text.running_text);
    EXPECT_EQ(dataset.index().shards.size(), 3u);
    std::vector<std::uint8_t> ids(static_cast<std::size_t>(dataset.index().total));
    dataset.read_text(0, ids);
    std::string text;
    for (const std::uint8_t id : ids) text += dataset.index().text.vocabulary.at(id);
    return text;
  };
  EXPECT_EQ(text_of("train"), "abcde\nfgh\xC3\xA9jklmno");
  EXPECT_EQ(text_of("validation"), "pqrst");
  expect_no_faults();
}

TEST_F(Convert, TextOfAnyBytesComesBack) {
  TextOptions options;
  std::string text = std::string("\0\xFF\r\n", 4);
  for (int i = 0; i < 40; ++i) text += static_cast<char>(i * 5);
  options.input = file("b.bin", text);
  options.out = path("out");
  options.alphabet = "auto";
  expect_contains(message_of([&] { convert_text(options, log_); }), "byte 1 (line 1) is not valid UTF-8");
  options.alphabet = "bytes";
  options.validation = 0;
  convert_text(options, log_);
  const TextDataset dataset(read_dataset_index(path("out-train")));
  std::vector<std::uint8_t> ids(text.size());
  dataset.read_text(0, ids);
  std::string back;
  for (const std::uint8_t id : ids) back += dataset.index().text.vocabulary.at(id);
  EXPECT_EQ(back, text);
  expect_no_faults();
}

TEST_F(Convert, TextThatCannotBeUsedIsAnErrorThatSaysWhy) {
  TextOptions options;
  options.out = path("out");
  std::string many;
  for (std::uint32_t code = 0x100; code < 0x100 + 255; ++code) many += encode_symbol(code);
  options.input = file("many.txt", many);
  expect_contains(message_of([&] { convert_text(options, log_); }),
                  "255 different symbols; at most 254 fit [use --alphabet bytes");
  options.input = file("empty.txt", "");
  expect_contains(message_of([&] { convert_text(options, log_); }), "has 0 character(s)");
  options.input = file("short.txt", "abc");
  options.validation = 0.5;
  expect_contains(message_of([&] { convert_text(options, log_); }), "3 characters are too few for --validation");
}

}  // namespace
}  // namespace ringtrain
