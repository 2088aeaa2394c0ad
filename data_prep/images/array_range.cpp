#include "data_prep/images/array_range.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {
namespace {

constexpr std::int64_t most_rows = 64, most_values = 1 << 24;

struct Range {
  double least = 0, most = 0;
  std::int64_t rows = 0;
};

// Returns nothing if the values cannot be read, or if none of them is finite.
std::optional<Range> range_of(const h5::File& file, const std::string& dataset, int axis) {
  const h5::Shape shape = file.shape(dataset);
  if (shape.empty()) return std::nullopt;
  const auto rows_axis = static_cast<std::size_t>(axis);
  std::int64_t values_of_a_row = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) values_of_a_row *= i == rows_axis ? 1 : shape[i];
  if (values_of_a_row < 1 || values_of_a_row > most_values) return std::nullopt;
  const std::int64_t rows = std::min({most_rows, most_values / values_of_a_row, shape[rows_axis]});
  if (rows < 1) return std::nullopt;
  const h5::Guard guard;
  const h5::Handle handle = file.open_dataset(dataset), space(H5Dget_space(handle.get()), H5Sclose);
  std::vector<hsize_t> start(shape.size(), 0), size(shape.begin(), shape.end());
  size[rows_axis] = static_cast<hsize_t>(rows);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  const h5::Handle memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
  std::vector<double> values(static_cast<std::size_t>(rows * values_of_a_row));
  if (H5Dread(handle.get(), H5T_NATIVE_DOUBLE, memory.get(), space.get(), H5P_DEFAULT, values.data()) < 0) {
    H5Eclear2(H5E_DEFAULT);
    return std::nullopt;
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return Range{*least, *most, rows};
}

// Returns an advice that makes values from 0 to 255 of values of this range.
std::string advice_on(const std::string& type, const Range& range, bool for_matlab, const std::string& x) {
  const auto within = [&](double least, double most) { return range.least >= least && range.most <= most; };
  const std::string scaled = within(0, 1)     ? cat(x, " * 255")
                             : within(-1, 1)  ? cat("(", x, " + 1) * 127.5")
                             : within(0, 255) ? x
                             : type == "u16"  ? ""
                                              : "?";
  if (scaled == "?") return "scale them to 0 to 255 first, and write them again as u8";
  if (for_matlab)
    return in_matlab(cat(x, " = uint8(", scaled.empty() ? cat(x, " / 257") : cat("round(", scaled, ")"), ")"));
  return cat("write them again as u8: ", scaled.empty() ? cat("(", x, " // 257)") : cat("numpy.rint(", scaled, ")"),
             ".astype('u1')");
}

}  // namespace

void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin) {
  const std::string type = file.type(dataset);
  const std::string found = cat(file.path(), ": '", dataset, "' holds ", type, ", not u8");
  if (type == "bool") throw Error(found, "write the data set again as u8: x.astype('u1') * 255");
  if (type[0] != 'f' && type[0] != 'i' && type[0] != 'u') throw Error(found, expected_images);
  const std::optional<Range> range = range_of(file, dataset, axis);
  if (!range) throw Error(found, "scale the values to 0 to 255 first, and write them again as u8");
  throw Error(cat(found, ": the first ", range->rows, " images have ", range->least, " to ", range->most),
              advice_on(type, *range, origin.is_matlab(), origin.is_matlab() ? variable_name(dataset) : "x"));
}

}  // namespace ringtrain
