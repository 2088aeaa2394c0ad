#include "tests/fuzz/damaged_hdf5.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "base/hash.h"

namespace ringtrain::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int element_kind = 6, first_element_byte = 240;

struct GoodFile {
  std::string bytes;
  std::vector<std::string> objects;
  std::vector<std::pair<std::string, std::string>> attributes;  // (object, name of the attribute)
};

herr_t add_attribute(hid_t object, const char* name, const H5A_info_t*, void* good) {
  char path[256] = "";
  H5Iget_name(object, path, sizeof path);
  static_cast<GoodFile*>(good)->attributes.push_back({path, name});
  return 0;
}

herr_t add_object(hid_t file, const char* name, const H5O_info_t*, void* good) {
  if (std::string_view(name) != ".") static_cast<GoodFile*>(good)->objects.emplace_back(name);
  const h5::Handle object(H5Oopen(file, name, H5P_DEFAULT), H5Oclose);
  H5Aiterate2(object.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add_attribute, good);
  return 0;
}

GoodFile look_at(const std::string& path) {
  GoodFile good;
  {
    const h5::Guard lock;
    const h5::File file = h5::File::open(path);
    H5Ovisit2(file.id(), H5_INDEX_NAME, H5_ITER_INC, add_object, &good, H5O_INFO_BASIC);
  }
  std::ifstream in(path, std::ios::binary);
  good.bytes.assign(std::istreambuf_iterator<char>(in), {});
  return good;
}

hid_t stored_type(std::uint8_t choice) {
  const hid_t types[] = {H5T_STD_U8LE,   H5T_STD_I32LE, H5T_STD_U32LE, H5T_STD_I64LE,  H5T_STD_U64LE, H5T_IEEE_F32LE,
                         H5T_IEEE_F64LE, H5T_C_S1,      H5T_STD_I16BE, H5T_IEEE_F64BE, H5T_STD_U64BE, H5T_STD_B8LE};
  return types[choice % std::size(types)];
}

void set_attribute(hid_t file, const GoodFile& good, Bytes& input, bool as_text) {
  const auto& [object, name] = good.attributes[input.byte() % good.attributes.size()];
  const std::string text = as_text ? input.text(200) + '\0' : "";
  const hsize_t extent = as_text ? 0 : input.byte() % 5;  // 0: one value without a shape
  const h5::Handle space(extent == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const h5::Handle type(H5Tcopy(as_text ? H5T_C_S1 : stored_type(input.byte())), H5Tclose);
  if (as_text) H5Tset_size(type.get(), text.size());
  const std::vector<std::uint64_t> values(4, as_text ? 0 : input.word());
  H5Adelete_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT);
  const h5::Handle attribute(H5Acreate_by_name(file, object.c_str(), name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                               H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
  if (as_text) {
    H5Awrite(attribute.get(), type.get(), text.data());
  } else if (H5Tget_class(type.get()) == H5T_FLOAT) {
    std::vector<double> reals(4);
    for (double& real : reals) real = static_cast<double>(static_cast<std::int64_t>(values[0])) / 1024;
    H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, reals.data());
  } else {
    H5Awrite(attribute.get(), H5T_NATIVE_UINT64, values.data());
  }
}

void replace_dataset(hid_t file, const GoodFile& good, Bytes& input) {
  const std::string& name = good.objects[input.byte() % good.objects.size()];
  const h5::Handle type(H5Tcopy(stored_type(input.byte())), H5Tclose);
  const std::uint8_t layout = input.byte();
  std::vector<hsize_t> shape(input.byte() % 5);
  for (hsize_t& extent : shape) extent = input.word(1 + (layout >> 5));
  const h5::Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const h5::Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (layout % 3 == 1 && !shape.empty()) {
    const std::vector<hsize_t> chunk(shape.size(), 4);
    H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    if (layout % 2 == 1) H5Pset_deflate(creation.get(), 9);
  }
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  const h5::Handle made(
      H5Dcreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose);
}

// Changes one value of a data set of numbers, as if a faulty writer had written it.
void set_element(hid_t file, const GoodFile& good, Bytes& input) {
  const std::string& name = good.objects[input.byte() % good.objects.size()];
  const hsize_t choice = input.byte();
  const std::uint64_t value = input.word();
  const h5::Handle dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (dataset.get() < 0) return;  // a group, or removed by an earlier change
  const h5::Handle space(H5Dget_space(dataset.get()), H5Sclose), type(H5Dget_type(dataset.get()), H5Tclose);
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  const int rank = H5Sget_simple_extent_ndims(space.get());
  const H5T_class_t kind = H5Tget_class(type.get());
  if (count <= 0 || count > 1 << 16 || rank < 1 || (kind != H5T_INTEGER && kind != H5T_FLOAT)) return;
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank)), at(extents.size());
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  hsize_t left = choice % static_cast<hsize_t>(count);
  for (std::size_t d = extents.size(); d-- > 0; left /= extents[d]) at[d] = left % extents[d];
  H5Sselect_elements(space.get(), H5S_SELECT_SET, 1, at.data());
  const hsize_t one = 1;
  const h5::Handle memory(H5Screate_simple(1, &one, nullptr), H5Sclose);
  const double real = static_cast<double>(static_cast<std::int64_t>(value)) / 1024;
  H5Dwrite(dataset.get(), kind == H5T_FLOAT ? H5T_NATIVE_DOUBLE : H5T_NATIVE_UINT64, memory.get(), space.get(),
           H5P_DEFAULT, kind == H5T_FLOAT ? static_cast<const void*>(&real) : &value);
}

void remove_one(hid_t file, const GoodFile& good, Bytes& input) {
  const std::uint8_t which = input.byte();
  if (which % 2 == 0) {
    H5Ldelete(file, good.objects[(which / 2) % good.objects.size()].c_str(), H5P_DEFAULT);
  } else {
    const auto& [object, name] = good.attributes[(which / 2) % good.attributes.size()];
    H5Adelete_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT);
  }
}

// Makes a change that HDF5 itself can make. Returns false for any other kind of change, which is then left in `input`.
bool change_contents(hid_t file, const GoodFile& good, Bytes& input, int kind) {
  switch (kind) {
    case 0:
      set_attribute(file, good, input, false);
      return true;
    case 1:
      set_attribute(file, good, input, true);
      return true;
    case 2:
      replace_dataset(file, good, input);
      return true;
    case 3:
      remove_one(file, good, input);
      return true;
    case element_kind:
      set_element(file, good, input);
      return true;
    default:
      return false;
  }
}

void change_bytes(const std::string& path, Bytes& input, int kind) {
  const std::uint64_t size = fs::file_size(path), at = input.word(3) % std::max<std::uint64_t>(size, 1);
  if (kind == 5) {
    fs::resize_file(path, at);
  } else {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(input.byte()));
  }
}

// Returns the number of elements of a data set of integers with `element_bytes` bytes each. Returns -1 if the data set
// is missing, has another type, or is too large.
hssize_t elements_of(const h5::Handle& dataset, std::size_t element_bytes) {
  if (dataset.get() < 0) return -1;
  const h5::Handle space(H5Dget_space(dataset.get()), H5Sclose), type(H5Dget_type(dataset.get()), H5Tclose);
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  const bool fits = H5Tget_class(type.get()) == H5T_INTEGER && H5Tget_size(type.get()) == element_bytes;
  return fits && count <= 1 << 16 ? count : -1;
}

}  // namespace

std::vector<std::uint8_t> bytes_of(hid_t file, const char* name) {
  const h5::Handle dataset(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  const hssize_t count = elements_of(dataset, 1);
  std::vector<std::uint8_t> bytes(count < 0 ? 0 : static_cast<std::size_t>(count));
  if (!bytes.empty() && H5Dread(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
    return {};
  return bytes;
}

void write_checksums(hid_t file, std::span<const std::uint8_t> bytes, const std::vector<std::uint64_t>& ends) {
  const h5::Handle dataset(H5Dopen2(file, "crc32c", H5P_DEFAULT), H5Dclose);
  if (elements_of(dataset, 4) != std::ssize(ends)) return;
  std::vector<std::uint32_t> checksums;
  std::uint64_t begin = 0;
  for (const std::uint64_t end : ends) {
    if (end < begin || end > bytes.size()) return;
    checksums.push_back(crc32c(bytes.subspan(begin, end - begin)));
    begin = end;
  }
  H5Dwrite(dataset.get(), H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, checksums.data());
}

std::string damaged_file(const std::string& name, std::string_view input,
                         const std::function<void(const std::string& path)>& make, Recompute recompute) {
  if (input.starts_with("\x89HDF")) return write_input(name, input);
  static std::map<std::string, GoodFile> known;
  auto found = known.find(name);
  if (found == known.end()) {
    const std::string path = in_folder("good-" + name);
    make(path);
    found = known.emplace(name, look_at(path)).first;
  }
  const GoodFile& good = found->second;
  const std::string path = write_input(name, good.bytes);
  Bytes rest(input);
  for (int changes = 0; !rest.empty() && changes < 8;) {
    const std::uint8_t choice = rest.byte();
    const int kind = choice >= first_element_byte ? element_kind : choice % 6;
    ++changes;
    if (kind < 4 || kind == element_kind) {
      const h5::Guard lock;
      const h5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      if (file.get() < 0) break;
      change_contents(file.get(), good, rest, kind);
      if (kind == element_kind && recompute != nullptr) recompute(file.get());
    } else {
      change_bytes(path, rest, kind);
      break;  // HDF5 must not write to a file whose bytes were changed, because it may no longer understand the file
    }
  }
  for (int changes = 0; !rest.empty() && changes < 4; ++changes)
    change_bytes(path, rest, rest.byte() % 12 == 5 ? 5 : 4);
  return path;
}

}  // namespace ringtrain::fuzz
