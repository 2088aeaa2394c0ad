// Tests the name that the verifier of text data sets gives to each fault of a file that still opens
// (data_prep/verify.cpp).
#include "data_prep/verify.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "data/shard_header.h"
#include "data_prep/text/names.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

template <class T>
hid_t native_type() {
  if constexpr (sizeof(T) == 1) return H5T_NATIVE_UINT8;
  if constexpr (sizeof(T) == 4) return H5T_NATIVE_UINT32;
  return H5T_NATIVE_UINT64;
}

// Writes an edited copy of a data set of one dimension in its place.
template <class T>
void change(const std::string& path, const char* name, const std::function<void(std::vector<T>&)>& edited) {
  std::vector<T> values = h5::File::open(path).read<T>(name);
  edited(values);
  edit(path, [&](hid_t file) {
    const hid_t type = native_type<T>();
    replace_dataset(file, name, type, {values.size()});
    const h5::Handle made(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
    ASSERT_GE(H5Dwrite(made.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  });
}

constexpr std::size_t row_bytes = 9;

// Changes a row in place, because "tokens" has attributes. Deletes the checksums, which would find the fault first.
void change_row(const std::string& path, std::size_t row, const std::vector<std::uint8_t>& ids) {
  edit(path, [&](hid_t file) {
    const h5::Handle tokens(H5Dopen2(file, "tokens", H5P_DEFAULT), H5Dclose);
    const h5::Handle space(H5Dget_space(tokens.get()), H5Sclose);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dread(tokens.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data());
    std::copy(ids.begin(), ids.end(), all.begin() + static_cast<std::ptrdiff_t>(row * row_bytes));
    ASSERT_GE(H5Dwrite(tokens.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
    H5Ldelete(file, "crc32c", H5P_DEFAULT);
  });
}

using Path = const std::string&;  // path of a file

struct Fault {
  const char* what;
  std::function<void(Path train, Path validation)> plant;
  const char* message;
};

const std::vector<Fault> faults = {
    {"changed bytes", [](Path a, Path) { change_byte(a, read_shard_header(a).byte_offset, 7); }, "has a wrong CRC-32C"},
    {"an id outside the vocabulary",
     [](Path a, Path) {
       change_row(a, 2, {0, 0, 0, 0, 0, 0, 0, 0, 200});
     },
     "record 2 of 'tokens' holds the id 200, but the vocabulary has "},
    {"an empty row", [](Path a, Path) { change_row(a, 3, std::vector<std::uint8_t>(row_bytes)); },
     "record 3 ('*********') holds only blanks"},
    {"offsets that do not ascend",
     [](Path a, Path) { change<std::uint64_t>(a, "name_offsets", [](auto& v) { v[1] = 1u << 30; }); },
     "'name_offsets' does not ascend from 0 to the length of 'names'"},
    {"a name with a foreign symbol",
     [](Path a, Path) { change<std::uint8_t>(a, "names", [](auto& v) { v[0] = '#'; }); },
     "has a symbol outside the vocabulary"},
    {"too few places of names",
     [](Path a, Path) { change<std::uint32_t>(a, "name_index", [](auto& v) { v.resize(5); }); },
     "'name_index' has 5 values, expected "},
    {"a place of no name",
     [](Path a, Path) { change<std::uint32_t>(a, "name_index", [](auto& v) { v[4] = 1u << 20; }); },
     "record 4 has name_index 1048576, but there are "},
    {"too few sample ids", [](Path a, Path) { change<std::uint64_t>(a, "sample_ids", [](auto& v) { v.resize(5); }); },
     "'sample_ids' has 5 values, expected "},
    {"a sample id after the last sample",
     [](Path a, Path) {
       const auto total = static_cast<std::uint64_t>(read_shard_header(a).total);
       change<std::uint64_t>(a, "sample_ids", [total](auto& v) { v[3] = total; });
     },
     "record 3 has sample id "},
    {"another number of classes",
     [](Path a, Path) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_classes", 7); }); },
     "'num_classes' is 7, but there are "},
    {"a prefix of one name in the place of another's",
     [](Path a, Path) {
       const auto tokens = h5::File::open(a).read<std::uint8_t>("tokens");
       const auto names = h5::File::open(a).read<std::uint32_t>("name_index");
       std::size_t other = 1;
       while (names[other] == names[0]) ++other;
       const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(other * row_bytes);
       change_row(a, 0, {from, from + row_bytes});
       change<std::uint32_t>(a, "name_index", [&](auto& v) { v[0] = v[other]; });
     },
     "rows, expected a multiple of its "},
    {"an empty name",
     [](Path a, Path) {
       edit(a, [](hid_t f) { set_attribute(f, "tokens", "stop_id", -1); });  // a stop would be a symbol of every name
       change<std::uint64_t>(a, "name_offsets", [](auto& v) { v[1] = v[0]; });
     },
     "name 0 is empty, expected one symbol or more"},
    {"splits of two conversions",
     [](Path, Path b) { edit(b, [](hid_t f) { set_attribute(f, "dataset_uuid", "other"); }); },
     "attribute 'dataset_uuid' is other, but "},
    {"a name in both splits",
     [](Path a, Path b) {
       fs::copy_file(a, b, fs::copy_options::overwrite_existing);
       edit(b, [](hid_t f) { set_attribute(f, "split", "validation"); });
     },
     "' is in both splits"},
};

class Verify : public WithFolder {
 protected:
  void make_names() {
    std::ofstream out(path("names.txt"));
    for (int i = 0; i < 60; ++i)
      out << "ab" << static_cast<char>('a' + i % 26) << static_cast<char>('a' + i / 26) << "y\n";
    out.close();
    NamesOptions options;
    options.input.path = path("names.txt");
    options.out = path("pets");
    options.shards = 1;
    std::ostringstream log;
    convert_names(options, log);
  }
  std::string shard(const std::string& split) const { return path("pets-" + split + "-00000-of-00001.h5"); }
};

class EachFault : public Verify, public testing::WithParamInterface<Fault> {};

TEST_P(EachFault, NamesTheFault) {
  make_names();
  ASSERT_EQ(verify_dataset(path("pets")).faults, std::vector<std::string>());
  GetParam().plant(shard("train"), shard("validation"));
  std::string found;
  for (const std::string& fault : verify_dataset(path("pets")).faults) found += fault + "\n";
  expect_contains(found, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Verify, EachFault, testing::ValuesIn(faults), [](const auto& fault) {
  std::string name = fault.param.what;
  for (char& letter : name)
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  return name;
});

TEST_F(Verify, AFileWithoutChecksumsIsGoodAndSaysSo) {
  make_names();
  edit(shard("train"), [](hid_t f) { H5Ldelete(f, "crc32c", H5P_DEFAULT); });
  const Verification result = verify_dataset(path("pets"));
  EXPECT_EQ(result.faults, std::vector<std::string>());
  std::string summary;
  for (const std::string& line : result.summary) summary += line + "\n";
  expect_contains(summary, "pets-train-00000-of-00001.h5: has no checksums (crc32c)");
}

}  // namespace
}  // namespace ringtrain
