// Checks that the file has the values of a data set: expect_stored() of hdf5.h.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/system_limits.h"
#include "data/hdf5.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

namespace fs = std::filesystem;

constexpr const char* never_written = "never written";
constexpr std::uint64_t deflate_packs = 1032;  // deflate compresses at most so many times

std::uint64_t values_in(const std::vector<hsize_t>& first, const std::vector<hsize_t>& last) {
  std::uint64_t values = 1;
  for (std::size_t i = 0; i < first.size(); ++i) values *= last[i] - first[i] + 1;
  return values;
}

// The names under which people know the filters that files come with.
std::string filter_name(H5Z_filter_t id, const std::string& stored) {
  static const std::map<H5Z_filter_t, const char*> known = {
      {4, "szip"},           {307, "bzip2"}, {32000, "lzf"},  {32001, "blosc"}, {32004, "lz4"},
      {32008, "bitshuffle"}, {32013, "zfp"}, {32015, "zstd"}, {32017, "sz"},    {32026, "blosc2"}};
  if (const auto found = known.find(id); found != known.end()) return found->second;
  return stored;
}

bool can_decode(H5Z_filter_t id) {
  unsigned flags = 0;
  const bool there = H5Zfilter_avail(id) > 0 && H5Zget_filter_info(id, &flags) >= 0;
  H5Eclear2(H5E_DEFAULT);
  return there && (flags & H5Z_FILTER_CONFIG_DECODE_ENABLED) != 0;
}

// Throws Error if the chunk at `offset` was stored with a filter that is not installed. Writers leave a filter out for
// chunks that it does not make smaller.
void expect_filters(const Part& part, hid_t creation, const std::vector<hsize_t>& offset,
                    const std::vector<unsigned>& missing) {
  unsigned left_out = 0;
  haddr_t address = 0;
  hsize_t bytes = 0;
  checked(H5Dget_chunk_info_by_coord(part.dataset, offset.data(), &left_out, &address, &bytes), part.name,
          "cannot read how a chunk is stored");
  for (const unsigned i : missing) {
    if ((left_out & (1u << i)) != 0) continue;
    char stored[64] = "";
    std::size_t values = 0;
    const H5Z_filter_t id = H5Pget_filter2(creation, i, nullptr, &values, nullptr, sizeof stored, stored, nullptr);
    const std::string name = filter_name(id, stored);
    throw Error(cat(part.name, " is compressed with ", name.empty() ? "the" : cat("'", name, "', the"), " HDF5 filter ",
                    id, ", which is not installed here"),
                cat("write the data set again with gzip or without compression, in h5py: f.create_dataset('new', "
                    "data=f['old'], compression='gzip'); or set HDF5_PLUGIN_PATH to a folder that has this filter"));
  }
}

// Returns 0 for a chunk that was never written. Some versions of HDF5 call this an error.
hsize_t chunk_bytes(const Part& part, const std::vector<hsize_t>& offset) {
  hsize_t bytes = 0;
  if (H5Dget_chunk_storage_size(part.dataset, offset.data(), &bytes) >= 0) return bytes;
  if (const std::string reason = innermost_description(); reason.find("not allocated") == std::string::npos)
    throw Error(cat(part.name, ": cannot find a chunk: ", reason), "the file is damaged: copy or make it again");
  return 0;
}

std::int64_t check_chunks(const Part& part, hid_t creation) {
  const std::vector<hsize_t> extents = extents_of(part.wanted);
  const std::size_t rank = extents.size();
  std::vector<hsize_t> chunk(rank);
  checked(H5Pget_chunk(creation, static_cast<int>(rank), chunk.data()), part.name,
          "cannot read the size of its chunks");
  std::vector<unsigned> missing_filters;
  for (int i = 0; i < H5Pget_nfilters(creation); ++i) {
    std::size_t values = 0;
    const auto number = static_cast<unsigned>(i);
    if (!can_decode(H5Pget_filter2(creation, number, nullptr, &values, nullptr, 0, nullptr, nullptr)))
      missing_filters.push_back(number);
  }
  MissingRows missing(part);
  const Bounds bounds(part.wanted);
  hsize_t stored = 0;
  checked(H5Dget_num_chunks(part.dataset, part.wanted, &stored), part.name, "cannot count its chunks");
  if (stored == 0) {
    missing.add(bounds.first, bounds.last);
    return missing.judge(false, never_written);
  }
  const bool is_block =
      static_cast<std::uint64_t>(H5Sget_select_npoints(part.wanted)) == values_in(bounds.first, bounds.last);
  std::vector<hsize_t> at(rank);  // the first value of a chunk
  for (std::size_t i = 0; i < rank; ++i) at[i] = bounds.first[i] / chunk[i] * chunk[i];
  for (bool more = true; more && !missing.enough();) {
    std::vector<hsize_t> first(rank), last(rank);
    for (std::size_t i = 0; i < rank; ++i) {
      first[i] = std::max(at[i], bounds.first[i]);
      last[i] = std::min(at[i] + chunk[i] - 1, bounds.last[i]);
    }
    if (is_block || H5Sselect_intersect_block(part.wanted, first.data(), last.data()) > 0) {
      const hsize_t bytes = chunk_bytes(part, at);
      if (bytes == 0) missing.add(first, last);
      if (bytes > 0 && !missing_filters.empty()) expect_filters(part, creation, at, missing_filters);
    }
    more = false;
    for (std::size_t i = rank; i-- > 0 && !more;) {  // the next chunk; the last axis runs fastest
      at[i] += chunk[i];
      more = at[i] <= bounds.last[i];
      if (!more) at[i] = bounds.first[i] / chunk[i] * chunk[i];
    }
  }
  return missing.judge(has_fill_value(creation), never_written);
}

// Returns the position of a value in the flat array.
std::uint64_t flat(const std::vector<hsize_t>& at, const std::vector<hsize_t>& extents) {
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < at.size(); ++i) position = position * extents[i] + at[i];
  return position;
}

void check_external(const Part& part, hid_t creation) {
  const Bounds bounds(part.wanted);
  const std::vector<hsize_t> extents = extents_of(part.wanted);
  const Handle type(checked(H5Dget_type(part.dataset), part.name, "cannot read its type"), H5Tclose);
  const std::uint64_t value_bytes = H5Tget_size(type.get());
  const std::uint64_t begin = flat(bounds.first, extents) * value_bytes,
                      end = (flat(bounds.last, extents) + 1) * value_bytes;
  std::uint64_t position = 0;  // of the external file's bytes in the data set
  for (int i = 0; i < H5Pget_external_count(creation) && position < end; ++i) {
    const ExternalFile file = external_file(part.dataset, creation, i);
    const std::uint64_t size = std::min(file.bytes, end - position);  // a file may have no limit
    const std::uint64_t needed = file.offset + size;
    const bool is_needed = position + size > begin;
    position += size;
    if (!is_needed) continue;
    std::error_code failed;
    const std::uintmax_t there = fs::file_size(file.path, failed);
    if (failed) {
      throw Error(
          cat(part.name, " lies in the external file '", file.path, "', which cannot be read: ", failed.message()),
          "put it there, or name its folder in the variable HDF5_EXTFILE_PREFIX");
    }
    if (there < needed) {
      throw Error(
          cat(part.name, " needs ", needed, " bytes of the external file '", file.path, "', which has only ", there),
          "the file is an incomplete copy, or was not written to its end: copy or make it again");
    }
  }
  if (position < end)
    throw Error(cat(part.name, " needs ", end, " bytes, but its external files have only ", position));
}

std::int64_t check_contiguous(const Part& part, hid_t creation) {
  if (H5Pget_external_count(creation) > 0) {
    check_external(part, creation);
    return 0;
  }
  const std::uint64_t bytes = H5Dget_storage_size(part.dataset), begin = H5Dget_offset(part.dataset);
  if (bytes == 0 || begin == HADDR_UNDEF) {
    const Bounds bounds(part.wanted);
    MissingRows missing(part);
    missing.add(bounds.first, bounds.last);
    return missing.judge(false, never_written);
  }
  hsize_t file_bytes = 0;
  const Handle file(checked(H5Iget_file_id(part.dataset), part.name, "has no file"), H5Fclose);
  checked(H5Fget_filesize(file.get(), &file_bytes), part.name, "cannot read the file's size");
  if (begin > file_bytes || bytes > file_bytes - begin)
    throw Error(cat(part.name, " ends at byte ", begin + bytes, ", but the file at ", file_bytes),
                "the file is damaged, or an incomplete copy: copy or make it again");
  return 0;
}

// Throws Error if the process may not open so many files. HDF5 reads zeros where it cannot open a file.
void expect_to_open_parts(const std::string& name, std::size_t files) {
  const auto open_now =
      static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
  const std::size_t needed = open_now + files + 64;  // 64: outputs and libraries
  ringtrain::expect_open_files(static_cast<std::int64_t>(needed),
                               cat(name, " consists of ", files, " files: the program"));
}

}  // namespace

std::vector<hsize_t> extents_of(hid_t space) {
  std::vector<hsize_t> extents(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return extents;
}

Bounds::Bounds(hid_t space)
    : first(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space)))), last(first.size()) {
  if (!first.empty()) H5Sget_select_bounds(space, first.data(), last.data());
}

MissingRows::MissingRows(const Part& part) : part_(part) {
  const std::vector<hsize_t> extents = extents_of(part.wanted);
  for (std::size_t i = 0; i < extents.size(); ++i)
    (static_cast<int>(i) == part.axis ? rows_ : values_of_a_row_) *= static_cast<std::int64_t>(extents[i]);
}

void MissingRows::add(const std::vector<hsize_t>& first, const std::vector<hsize_t>& last) {
  ++added_;
  const auto axis = static_cast<std::size_t>(part_.axis);
  const auto row = static_cast<std::int64_t>(first.empty() ? 0 : first[axis]),
             end = static_cast<std::int64_t>(last.empty() ? 1 : last[axis] + 1);
  const auto values = static_cast<std::int64_t>(values_in(first, last)) / (end - row);
  changes_[row] += values;
  changes_[end] -= values;
}

std::int64_t MissingRows::judge(bool has_fill_value, const std::string& why) const {
  struct Kind {
    std::int64_t count = 0, first = 0, end = 0;  // [first, end) is the first range
    void add(std::int64_t from, std::int64_t to) {
      if (count == 0) first = from, end = from;
      if (from == end) end = to;
      count += to - from;
    }
  } whole, parts;
  std::int64_t missing = 0;
  for (auto change = changes_.begin(); change != changes_.end() && std::next(change) != changes_.end(); ++change) {
    missing += change->second;
    if (missing > 0) (missing >= values_of_a_row_ ? whole : parts).add(change->first, std::next(change)->first);
  }
  if (whole.count == 0 && (has_fill_value || parts.count == 0)) return parts.count;
  const Kind& kind = whole.count > 0 ? whole : parts;
  const std::int64_t others = kind.count - (kind.end - kind.first);
  const std::string rows =
      kind.end - kind.first == 1 ? cat("row ", kind.first) : cat("rows ", kind.first, " to ", kind.end - 1);
  const std::string plural = kind.count == 1 ? "was " : "were ";
  if (rows_ == kind.count && whole.count > 0) throw Error(cat(part_.name, " was ", why));
  throw Error(cat(part_.name, ": ", whole.count > 0 ? "" : "parts of ", rows, " of ", rows_,
                  others > 0 ? cat(", and ", enough() ? "many" : std::to_string(others), " other rows,") : "", " ",
                  plural, why));
}

bool has_fill_value(hid_t creation) {
  H5D_fill_value_t status = H5D_FILL_VALUE_UNDEFINED;
  return H5Pfill_value_defined(creation, &status) >= 0 && status == H5D_FILL_VALUE_USER_DEFINED;
}

std::int64_t check_part(const Part& part, int depth, SourceFiles& files) {
  const Handle creation(checked(H5Dget_create_plist(part.dataset), part.name, "cannot read how it is stored"),
                        H5Pclose);
  switch (H5Pget_layout(creation.get())) {
    case H5D_COMPACT:  // lies in the header, always whole
      return 0;
    case H5D_CONTIGUOUS:
      return check_contiguous(part, creation.get());
    case H5D_CHUNKED:
      return check_chunks(part, creation.get());
    case H5D_VIRTUAL:
      return check_sources(part, creation.get(), depth, files);
    default:
      throw Error(cat(part.name, " is stored in a way that this program does not know"));
  }
}

std::int64_t expect_stored(const File& file, const std::string& dataset, const Rows& rows) {
  const Guard guard;
  const Handle handle = file.open_dataset(dataset);
  const Handle wanted(checked(H5Dget_space(handle.get()), file.path(), "cannot read a shape"), H5Sclose);
  const std::string name = cat(file.path(), ": data set '", dataset, "'");
  if (H5Sget_simple_extent_npoints(wanted.get()) == 0) return 0;
  if (std::vector<hsize_t> size = extents_of(wanted.get()); !size.empty()) {
    std::vector<hsize_t> start(size.size(), 0);
    const auto axis = static_cast<std::size_t>(rows.axis);
    const std::int64_t end = std::min(rows.end, static_cast<std::int64_t>(size[axis]));
    if (rows.first >= end) return 0;
    start[axis] = static_cast<hsize_t>(rows.first);
    size[axis] = static_cast<hsize_t>(end - rows.first);
    checked(H5Sselect_hyperslab(wanted.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr), name,
            "cannot select rows");
  }
  // A link may lead into another file.
  const Handle owner_id(checked(H5Iget_file_id(handle.get()), name, "has no file"), H5Fclose);
  const std::string owner_path = name_of_file(owner_id.get());
  const bool is_linked = owner_path != file.path();
  const File owner = is_linked ? File::open(owner_path) : File();
  SourceFiles files;
  const std::int64_t filled = check_part({is_linked ? owner : file, handle.get(), wanted.get(), rows.axis,
                                          is_linked ? cat(name, " (in ", owner_path, ")") : name},
                                         0, files);
  if (!files.empty()) expect_to_open_parts(name, files.size());
  return filled;
}

void expect_plausible_size(const File& file, const std::string& dataset) {
  const Guard guard;
  const Handle handle = file.open_dataset(dataset);
  const Handle creation(checked(H5Dget_create_plist(handle.get()), file.path(), "cannot read how a data set is stored"),
                        H5Pclose),
      space(checked(H5Dget_space(handle.get()), file.path(), "cannot read a shape"), H5Sclose),
      type(checked(H5Dget_type(handle.get()), file.path(), "cannot read a type"), H5Tclose);
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED) return;  // expect_stored() has compared the sizes
  std::uint64_t packs = 1;
  for (int i = 0; i < H5Pget_nfilters(creation.get()); ++i) {
    std::size_t values = 0;
    const H5Z_filter_t id =
        H5Pget_filter2(creation.get(), static_cast<unsigned>(i), nullptr, &values, nullptr, 0, nullptr, nullptr);
    if (id == H5Z_FILTER_DEFLATE) packs *= deflate_packs;
    if (id > H5Z_FILTER_FLETCHER32) return;  // such as scale-offset, which stores equal values in no bytes at all
  }
  const auto claimed = static_cast<std::uint64_t>(H5Sget_simple_extent_npoints(space.get())) * H5Tget_size(type.get());
  const std::uint64_t stored = H5Dget_storage_size(handle.get());
  hsize_t file_bytes = 0;
  const Handle owner(checked(H5Iget_file_id(handle.get()), file.path(), "a data set has no file"), H5Fclose);
  checked(H5Fget_filesize(owner.get(), &file_bytes), file.path(), "cannot read the file's size");
  if (stored <= file_bytes && claimed / packs <= stored) return;
  throw Error(cat(file.path(), ": data set '", dataset, "' claims to hold ", claimed, " bytes, more than its ", stored,
                  " stored bytes can in a file of ", file_bytes, ": the file is damaged"),
              "copy or make it again");
}

}  // namespace ringtrain::h5
