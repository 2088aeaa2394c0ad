// Checks virtual data sets, which consist of parts of other data sets. HDF5 reads zeros where a part is missing.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

namespace fs = std::filesystem;

constexpr int most_depth = 16;               // of virtual data sets that consist of virtual data sets
constexpr std::int64_t numbers_tried = 100;  // of files after the first missing one whose name has a number

// A selection without an end has, along one axis, any number of blocks or one block of any length.
struct Slab {
  std::vector<hsize_t> start, stride, count, block;
  std::optional<std::size_t> endless;  // the axis
  bool is_block = false;               // one block of any length

  static std::optional<Slab> of(hid_t space) {
    const auto rank = static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space)));
    if (rank == 0 || H5Sget_select_type(space) != H5S_SEL_HYPERSLABS || H5Sis_regular_hyperslab(space) <= 0) return {};
    const std::vector<hsize_t> room(rank);
    Slab slab{room, room, room, room, {}};
    H5Sget_regular_hyperslab(space, slab.start.data(), slab.stride.data(), slab.count.data(), slab.block.data());
    for (std::size_t i = 0; i < rank; ++i) {
      if (slab.count[i] != H5S_UNLIMITED && slab.block[i] != H5S_UNLIMITED) continue;
      slab.endless = i;
      slab.is_block = slab.block[i] == H5S_UNLIMITED;
    }
    return slab;
  }

  // Returns how many blocks (or values of the one block) lie inside an extent.
  hsize_t inside(hsize_t extent) const {
    const std::size_t i = *endless;
    if (is_block) return extent > start[i] ? extent - start[i] : 0;
    return extent >= start[i] + block[i] ? (extent - start[i] - block[i]) / stride[i] + 1 : 0;
  }

  // Selects blocks [first, first + many).
  void select(hid_t space, hsize_t first, hsize_t many) const {
    Slab slab = *this;
    const std::size_t i = *endless;
    if (is_block) {
      slab.block[i] = many;
    } else {
      slab.start[i] += first * stride[i];
      slab.count[i] = many;
    }
    H5Sselect_hyperslab(space, H5S_SELECT_SET, slab.start.data(), slab.stride.data(), slab.count.data(),
                        slab.block.data());
  }
};

// HDF5 combines only selections of hyperslabs, so that a selection of all values becomes one.
void make_slab(hid_t space) {
  if (H5Sget_select_type(space) != H5S_SEL_ALL) return;
  const std::vector<hsize_t> extents = extents_of(space);
  const std::vector<hsize_t> start(extents.size(), 0);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr);
}

hssize_t selected(hid_t space) {
  return H5Sget_select_type(space) == H5S_SEL_NONE ? 0 : H5Sget_select_npoints(space);
}

// Calls action(first, last) for each block of a selection of hyperslabs until it returns false. `last` is inclusive.
void for_each_block(
    hid_t space,
    const std::function<bool(const std::vector<hsize_t>& first, const std::vector<hsize_t>& last)>& action) {
  const std::size_t rank = extents_of(space).size();
  std::vector<hsize_t> corners(2 * rank);
  const hssize_t blocks = H5Sget_select_hyper_nblocks(space);
  for (hssize_t i = 0; i < blocks; ++i) {
    H5Sget_select_hyper_blocklist(space, static_cast<hsize_t>(i), 1, corners.data());
    const auto middle = corners.begin() + static_cast<std::ptrdiff_t>(rank);
    if (!action(std::vector<hsize_t>(corners.begin(), middle), std::vector<hsize_t>(middle, corners.end()))) return;
  }
}

// Takes values out of a selection.
void subtract(hid_t space, hid_t values) {
  const auto take = [&](const hsize_t* start, const hsize_t* stride, const hsize_t* count, const hsize_t* block) {
    if (selected(space) > 0) H5Sselect_hyperslab(space, H5S_SELECT_NOTB, start, stride, count, block);
  };
  if (const std::optional<Slab> slab = Slab::of(values)) {
    take(slab->start.data(), slab->stride.data(), slab->count.data(), slab->block.data());
    return;
  }
  for_each_block(values, [&](const std::vector<hsize_t>& first, const std::vector<hsize_t>& last) {
    std::vector<hsize_t> size;
    for (std::size_t i = 0; i < first.size(); ++i) size.push_back(last[i] - first[i] + 1);
    const std::vector<hsize_t> one(first.size(), 1);
    take(first.data(), nullptr, one.data(), size.data());
    return true;
  });
}

// "%b" in a name of a source stands for a number, and "%%" for "%".
std::string with_number(const std::string& name, hsize_t number) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char next = name[i] == '%' && i + 1 < name.size() ? name[i + 1] : '\0';
    if (next == 'b') result += std::to_string(number);
    if (next == '%') result += '%';
    if (next == 'b' || next == '%') {
      ++i;
    } else {
      result += name[i];
    }
  }
  return result;
}

// The source of a part of a virtual data set.
struct Source {
  std::string file, dataset;  // with "%b" and "%%"
  Handle target, selection;   // the places in the virtual data set, and the values in the source
};

Source read_source(const Part& part, hid_t creation, std::size_t number) {
  Source source;
  const auto text = [&](auto get) {
    std::string value(static_cast<std::size_t>(checked(get(creation, number, nullptr, 0), part.name, "has no source")),
                      '\0');
    get(creation, number, value.data(), value.size() + 1);
    return value;
  };
  source.file = text(H5Pget_virtual_filename);
  source.dataset = text(H5Pget_virtual_dsetname);
  source.target = {checked(H5Pget_virtual_vspace(creation, number), part.name, "has no places"), H5Sclose};
  source.selection = {checked(H5Pget_virtual_srcspace(creation, number), part.name, "has no source"), H5Sclose};
  make_slab(source.target.get());
  return source;
}

// Returns the paths at which HDF5 looks for the file of a source, in its order.
std::vector<std::string> places_of(const Part& part, const std::string& name) {
  std::vector<std::string> places;
  fs::path relative = name;
  if (relative.is_absolute()) {
    places.push_back(name);
    relative = relative.filename();
  }
  if (const char* variable = std::getenv("HDF5_VDS_PREFIX"); variable != nullptr) {
    for (std::string folder : split(variable, ':')) {
      const std::string origin = "${ORIGIN}";
      if (folder.starts_with(origin))
        folder.replace(0, origin.size(), fs::absolute(part.file.path()).parent_path().string());
      if (!folder.empty()) places.push_back((fs::path(folder) / relative).string());
    }
  }
  std::error_code unknown;
  places.push_back((fs::absolute(part.file.path()).parent_path() / relative).string());
  places.push_back(relative.string());
  places.push_back((fs::canonical(part.file.path(), unknown).parent_path() / relative).string());
  return places;
}

// Returns the path of a source's file. Throws Error if there is none.
std::string find_file(const Part& part, const std::string& rows, const std::string& name) {
  const std::vector<std::string> places = places_of(part, name);
  for (const std::string& place : places)
    if (fs::exists(place)) return place;
  throw Error(cat(part.name, ": ", rows, " of this virtual data set come from the file '", name, "', which is missing"),
              cat("put it at ", places[fs::path(name).is_absolute() ? 0 : places.size() - 3],
                  ", or name its folder in the variable HDF5_VDS_PREFIX"));
}

std::string rows_text(hid_t space, int axis) {
  const Bounds bounds(space);
  const auto i = static_cast<std::size_t>(axis);
  if (bounds.first[i] == bounds.last[i]) return cat("row ", bounds.first[i]);
  return cat("rows ", bounds.first[i], " to ", bounds.last[i]);
}

// Checks the source of one part. `target` has the places of the part in the virtual data set, and `selection` the same
// number of values in the source.
std::int64_t check_source(const Part& part, hid_t target, const File& file, const std::string& dataset, hid_t selection,
                          int depth, SourceFiles& files) {
  const Handle source = file.open_dataset(dataset);
  const std::string name = cat(file.path(), ": data set '", dataset, "'");
  const Handle space(checked(H5Dget_space(source.get()), name, "cannot read its shape"), H5Sclose);
  const Handle chosen(H5Scopy(H5Sget_select_type(selection) == H5S_SEL_ALL ? space.get() : selection), H5Sclose);
  make_slab(chosen.get());
  if (selected(chosen.get()) != selected(target))
    throw Error(cat(name, " has ", selected(chosen.get()), " values, expected ", selected(target)));
  const Handle needed(
      checked(H5Sselect_project_intersection(target, chosen.get(), part.wanted), name, "cannot find the needed values"),
      H5Sclose);
  const Bounds bounds(needed.get());
  const std::vector<hsize_t> extents = extents_of(space.get());
  if (extents.size() != bounds.last.size())
    throw Error(cat(name, " has ", extents.size(), " dimensions, expected ", bounds.last.size()));
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (bounds.last[i] < extents[i]) continue;
    throw Error(cat(name, " is too short: it has ", extents[i], i == 0 ? " rows" : cat(" values along axis ", i + 1),
                    ", but ", bounds.last[i] + 1, " are needed"));
  }
  checked(H5Sselect_copy(space.get(), needed.get()), name, "cannot select values");
  return check_part({file, source.get(), space.get(), 0, name}, depth + 1, files);
}

// One pass over the sources of a virtual data set.
class Sources {
 public:
  Sources(const Part& part, hid_t creation, int depth, SourceFiles& files)
      : part_(part), creation_(creation), depth_(depth), files_(files), uncovered_(H5Scopy(part.wanted), H5Sclose) {
    make_slab(uncovered_.get());
    extents_ = extents_of(part.wanted);
  }

  std::int64_t check() {
    std::size_t count = 0;
    checked(H5Pget_virtual_count(creation_, &count), part_.name, "cannot count its sources");
    std::int64_t filled = 0;
    for (std::size_t i = 0; i < count; ++i) filled += check_one(read_source(part_, creation_, i));
    if (selected(uncovered_.get()) == 0) return filled;
    return filled + judge_uncovered();
  }

 private:
  std::int64_t check_one(const Source& source) {
    const std::optional<Slab> target = Slab::of(source.target.get()), selection = Slab::of(source.selection.get());
    const Handle places(H5Scopy(part_.wanted), H5Sclose);
    if (!target || !target->endless) {
      checked(H5Sselect_copy(places.get(), source.target.get()), part_.name, "cannot select places");
      return check_places(source, places.get(), source.selection.get(), 0);
    }
    const hsize_t blocks = target->inside(extents_[*target->endless]);
    if (selection && selection->endless) return check_endless(source, *target, *selection, blocks);
    std::int64_t filled = 0;
    for (hsize_t b = 0; b < blocks; ++b) {
      target->select(places.get(), b, 1);
      filled += check_places(source, places.get(), source.selection.get(), b);
    }
    for (hsize_t b = blocks + 1; b < blocks + numbers_tried; ++b) expect_no_later_file(source, blocks, b);
    return filled;
  }

  // Both the places and the source grow. The part has as many blocks as both have.
  std::int64_t check_endless(const Source& source, const Slab& target, const Slab& selection, hsize_t blocks) {
    if (blocks == 0) return 0;
    const std::string path = file_of(source, part_.wanted, 0);
    const File* file = &open(path);
    const Handle dataset = file->open_dataset(with_number(source.dataset, 0));
    const Handle space(checked(H5Dget_space(dataset.get()), path, "cannot read a shape"), H5Sclose);
    const std::vector<hsize_t> extents = extents_of(space.get());
    if (extents.size() != selection.start.size()) throw Error(cat(part_.name, ": a source has another shape"));
    const hsize_t many = std::min(blocks, selection.inside(extents[*selection.endless]));
    if (many == 0) return 0;
    const Handle places(H5Scopy(part_.wanted), H5Sclose);
    target.select(places.get(), 0, many);
    selection.select(space.get(), 0, many);
    return check_places(source, places.get(), space.get(), 0);
  }

  // Files with numbers in their names end at the first one that is missing. A later one shows that it was forgotten.
  void expect_no_later_file(const Source& source, hsize_t missing, hsize_t later) const {
    const std::string name = with_number(source.file, later);
    if (name == with_number(source.file, missing)) return;
    for (const std::string& place : places_of(part_, name)) {
      if (!fs::exists(place)) continue;
      throw Error(cat(part_.name, ": the file '", with_number(source.file, missing),
                      "' of this virtual data set is missing, ", "although '", name, "' is there"),
                  "put it beside the others, or remove the later ones");
    }
  }

  std::int64_t check_places(const Source& source, hid_t places, hid_t selection, hsize_t number) {
    // H5Scombine_select() crashes in HDF5 1.10.
    const Handle shared(
        checked(H5Sselect_project_intersection(places, places, part_.wanted), part_.name, "cannot compare places"),
        H5Sclose);
    if (selected(shared.get()) == 0) return 0;
    const std::int64_t filled = check_values(source, places, shared.get(), selection, number);
    subtract(uncovered_.get(), places);
    return filled;
  }

  std::int64_t check_values(const Source& source, hid_t places, hid_t shared, hid_t selection, hsize_t number) {
    const std::string path = file_of(source, shared, number);
    try {
      const File& file = path == part_.file.path() ? part_.file : open(path);
      return check_source(part_, places, file, with_number(source.dataset, number), selection, depth_, files_);
    } catch (const Error& error) {
      if (depth_ > 0) throw;  // the message names the innermost data set and the outermost one
      throw Error(cat(part_.name, ": ", rows_text(shared, part_.axis), " come from another data set. ", error.what()),
                  error.hint(), error.where());
    }
  }

  std::string file_of(const Source& source, hid_t places, hsize_t number) {
    const std::string name = with_number(source.file, number);
    if (name == ".") return part_.file.path();
    const std::string path = find_file(part_, rows_text(places, part_.axis), name);
    files_.insert(path);
    return path;
  }

  const File& open(const std::string& path) {
    if (!opened_ || opened_->path() != path) opened_ = File::open(path);
    return *opened_;
  }

  std::int64_t judge_uncovered() const {
    MissingRows missing(part_);
    for_each_block(uncovered_.get(), [&](const std::vector<hsize_t>& first, const std::vector<hsize_t>& last) {
      missing.add(first, last);
      return !missing.enough();
    });
    return missing.judge(has_fill_value(creation_), "never given a source in this virtual data set");
  }

  const Part& part_;
  hid_t creation_;
  int depth_;
  SourceFiles& files_;
  Handle uncovered_;  // the wanted values that no source has had yet
  std::vector<hsize_t> extents_;
  std::optional<File> opened_;  // the file that was used last
};

}  // namespace

std::int64_t check_sources(const Part& part, hid_t creation, int depth, SourceFiles& files) {
  if (depth == most_depth)
    throw Error(cat(part.name, " is a virtual data set that consists of itself, or of ", most_depth,
                    " virtual data sets one inside the other"));
  return Sources(part, creation, depth, files).check();
}

}  // namespace ringtrain::h5
