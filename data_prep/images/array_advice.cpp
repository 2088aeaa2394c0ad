// What to do with an array that is not read as it is: the advice and the refusals of arrays.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data_prep/images/arrays.h"

namespace ringtrain {

std::string in_matlab(const std::string& statement) {
  return cat("in MATLAB: ", statement, "; then save it again with -v7.3");
}

std::string variable_name(const std::string& dataset) {
  std::string name = dataset.substr(std::min(dataset.find_first_not_of('/'), dataset.size()));
  std::ranges::replace(name, '/', '.');
  return name;
}

namespace {

constexpr std::int64_t most_rows = 64, most_values = 1 << 24;
constexpr std::int64_t most_examined_values = 1 << 28;

// Some rows of an array, counted along an axis, as numbers.
struct Rows {
  std::vector<double> values;
  std::int64_t rows = 0;
};

// Reads at most 64 rows from `begin` on. Returns no values if they cannot be read.
Rows rows_from(const h5::File& file, const std::string& dataset, std::size_t axis, std::int64_t begin) {
  const h5::Shape shape = file.shape(dataset);
  if (shape.empty()) return {};
  std::int64_t values_of_a_row = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) values_of_a_row *= i == axis ? 1 : shape[i];
  if (values_of_a_row < 1 || values_of_a_row > most_values) return {};
  const std::int64_t rows = std::min({most_rows, most_values / values_of_a_row, shape[axis] - begin});
  if (rows < 1) return {};
  const h5::Guard guard;
  const h5::Handle handle = file.open_dataset(dataset);
  const auto [space, memory] = h5::select_rows(handle.get(), shape, {begin, begin + rows, static_cast<int>(axis)});
  Rows found{std::vector<double>(static_cast<std::size_t>(rows * values_of_a_row)), rows};
  if (H5Dread(handle.get(), H5T_NATIVE_DOUBLE, memory.get(), space.get(), H5P_DEFAULT, found.values.data()) >= 0)
    return found;
  H5Eclear2(H5E_DEFAULT);
  return {};
}

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = -least;  // of all finite values; least > most: none
  std::int64_t rows = 0;
  std::optional<RowValue> not_finite;  // the first NaN or infinite value
};

// Examines all rows, or the first ones of a very large array.
Range range_of(const h5::File& file, const std::string& dataset, std::size_t axis) {
  Range range;
  const h5::Shape shape = file.shape(dataset);
  std::int64_t apart = 1;  // values between those of a row and those of the next one
  for (std::size_t i = axis + 1; i < shape.size(); ++i) apart *= shape[i];
  for (std::int64_t examined = 0; examined < most_examined_values;) {
    const Rows part = rows_from(file, dataset, axis, range.rows);
    if (part.rows == 0) break;
    for (std::size_t i = 0; i < part.values.size(); ++i) {
      const double value = part.values[i];
      if (!std::isfinite(value)) {
        const std::int64_t row = range.rows + static_cast<std::int64_t>(i) / apart % part.rows;
        if (!range.not_finite || row < range.not_finite->row) range.not_finite = {row, value};
        continue;
      }
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
    }
    range.rows += part.rows;
    examined += std::ssize(part.values);
  }
  return range;
}

// Returns the bytes of the first value of strings, opaque values, or rows of bytes. "": they cannot be read.
std::string first_value(const h5::File& file, const std::string& dataset) {
  const h5::Shape shape = file.shape(dataset);
  if (shape.empty() || std::ranges::count(shape, 0) > 0) return "";
  const h5::Guard guard;
  const h5::Handle handle = file.open_dataset(dataset), type(H5Dget_type(handle.get()), H5Tclose);
  hsize_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= static_cast<hsize_t>(shape[i]);
  const std::size_t bytes = H5Tget_size(type.get());
  if (bytes < 1 || count > static_cast<hsize_t>(most_values) / bytes) return "";
  const h5::RowSpaces row = h5::select_rows(handle.get(), shape, {0, 1});
  const auto read = [&](void* values) {
    const bool is_read = H5Dread(handle.get(), type.get(), row.memory.get(), row.file.get(), H5P_DEFAULT, values) >= 0;
    if (!is_read) H5Eclear2(H5E_DEFAULT);
    return is_read;
  };
  if (H5Tis_variable_str(type.get()) > 0) {
    std::vector<char*> texts(count, nullptr);
    if (!read(texts.data())) return "";
    std::string text = texts[0] == nullptr ? "" : texts[0];
    H5Dvlen_reclaim(type.get(), row.memory.get(), H5P_DEFAULT, texts.data());
    return text;
  }
  std::string text(count * bytes, '\0');
  return read(text.data()) ? text : "";
}

bool is_picture_file(const std::string& bytes) {
  return bytes.starts_with("\xFF\xD8\xFF") || bytes.starts_with("\x89PNG");
}

// Returns "what, in Python, and import it with --images x_u8:" and lines that make that data set with this body.
std::string with_h5py(const h5::File& file, const std::string& dataset, const std::string& what,
                      const std::string& body) {
  return cat(what, ", in Python, and import it with --images ", dataset,
             "_u8:\n    import h5py, numpy, re\n    with h5py.File(", python_text(file.path()),
             ", 'r+') as f:\n        x = f[", python_text(dataset), "]\n        ", body);
}

// The body is y = ... for one array.
std::string as_array(const h5::File& file, const std::string& dataset, const std::string& what,
                     const std::string& expression) {
  return with_h5py(file, dataset, what, cat("f[", python_text(dataset + "_u8"), "] = ", expression));
}

// The expression makes the bytes of image i.
std::string as_encoded(const h5::File& file, const std::string& dataset, const std::string& what,
                       const std::string& expression) {
  return with_h5py(file, dataset, what,
                   cat("y = f.create_dataset(", python_text(dataset + "_u8"),
                       ", (len(x),), h5py.vlen_dtype('u1'))\n        for i in range(len(x)): y[i] = ", expression));
}

constexpr const char* bytes_of_files = "write the bytes of each file as a value of variable length";

std::string advice_on_text_images(const h5::File& file, const std::string& dataset) {
  std::string text = first_value(file, dataset);
  text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
  if (is_picture_file(text)) {
    const h5::Guard guard;
    const h5::Handle handle = file.open_dataset(dataset), type(H5Dget_type(handle.get()), H5Tclose);
    if (H5Tis_variable_str(type.get()) > 0)
      return "a text of variable length ends at the first zero byte of a JPEG or PNG file: write the files again, as "
             "h5py.vlen_dtype('u1')";
    return as_encoded(file, dataset, bytes_of_files, "numpy.frombuffer(x[i], 'u1')");
  }
  const std::string lower = ascii_lower(text);
  for (const char* ending : {".jpg", ".jpeg", ".png", ".jfif", ".jpe"})
    if (lower.ends_with(ending))
      return cat("they are paths, such as ", text,
                 ": write lines \"path label\" of them, open('list.txt', 'w').writelines(f'{p}\\t{n}\\n' for p, n in "
                 "zip(x.asstr()[:], labels[:])), for ringtrain-data images FOLDER --list list.txt");
  return "";
}

}  // namespace

std::string advice_on_range(const std::string& type, double least, double most, bool for_matlab, const std::string& x) {
  const auto within = [&](double low, double high) { return least >= low && most <= high; };
  const auto from = [&](const std::string& numpy, const std::string& matlab) {
    return for_matlab ? in_matlab(cat(x, " = uint8(", matlab, ")"))
                      : cat("write them again as u8: ", numpy, ".astype('u1')");
  };
  const auto rounded = [&](const std::string& scaled) {
    return from(cat("numpy.rint(", scaled, ")"), cat("round(", scaled, ")"));
  };
  if (within(0, 1)) return rounded(cat(x, " * 255"));
  if (within(-1, 1)) return rounded(cat("(", x, " + 1) * 127.5"));
  if (within(0, 255)) return rounded(x);
  if (type == "i8") return from(cat("(", x, ".astype('i2') + 128)"), cat("int16(", x, ") + 128"));
  if (within(0, 65535)) {
    int top = 511;
    while (top < most) top = 2 * top + 1;
    if (top == 65535 && type[0] != 'f') return from(cat("(", x, " // 257)"), cat(x, " / 257"));
    return from(cat("numpy.rint(", x, ".clip(0, ", top, ") * (255 / ", top, "))"),
                cat("double(", x, ") * (255 / ", top, ")"));
  }
  const std::string shifted = cat(least < 0 ? " + " : " - ", std::abs(least)), width = cat(most - least);
  return cat("scale them to 0 to 255 first, with the same numbers for all splits; ",
             from(cat("numpy.rint((", x, shifted, ") * (255 / ", width, ")).clip(0, 255)"),
                  cat("(double(", x, ")", shifted, ") * (255 / ", width, ")")));
}

std::string text_of(const RowValue& found) {
  return cat("row ", found.row, " has ", std::isnan(found.value) ? "NaN" : "an infinite value");
}

std::string advice_on_not_finite(bool for_matlab) {
  return cat("no pixel can be made of it: replace such values (", for_matlab ? "" : "numpy.",
             "isfinite finds them), or leave out their images and labels");
}

void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin) {
  const std::string type = file.type(dataset);
  const std::string found = cat(file.path(), ": '", dataset, "' holds ", type, ", not u8");
  if (type == "bool") throw Error(found, "write the data set again as u8: x.astype('u1') * 255");
  std::string advice;
  if (type == "string") advice = advice_on_text_images(file, dataset);
  if (type == "opaque bytes" && is_picture_file(first_value(file, dataset)))
    advice = as_encoded(file, dataset, bytes_of_files, "numpy.frombuffer(x[i], 'u1')");
  if (type == "small arrays") advice = as_array(file, dataset, "write one array with more axes", "x[:]");
  if (type == "references")
    advice = as_array(file, dataset, "write one array of what the references name, if all have one size",
                      "numpy.stack([f[r][()] for r in x[:].ravel()])");
  if (type == "records of several fields")
    advice = "if one field has the pictures and one the labels, write each as a data set: f['images'] = x['FIELD']";
  if (!advice.empty()) throw Error(found, advice);
  if (type[0] != 'f' && type[0] != 'i' && type[0] != 'u') throw Error(found, expected_images);
  if (file.shape(dataset).size() == 2 && type == "i8" && is_picture_file(first_value(file, dataset)))
    throw Error(found, as_encoded(file, dataset, bytes_of_files, "numpy.trim_zeros(x[i].view('u1'), 'b')"));
  const Range range = range_of(file, dataset, static_cast<std::size_t>(axis));
  if (range.not_finite)
    throw Error(cat(found, ": ", text_of(*range.not_finite)), advice_on_not_finite(origin.is_matlab()));
  if (range.least > range.most) throw Error(found, "scale the values to 0 to 255 first, and write them again as u8");
  throw Error(cat(found, ": the first ", range.rows, " images have ", range.least, " to ", range.most),
              advice_on_range(type, range.least, range.most, origin.is_matlab(),
                              origin.is_matlab() ? variable_name(dataset) : "x"));
}

namespace {

// Returns how rows of so many pixels become pictures.
std::string advice_on_rows_of_pixels(const h5::File& file, const std::string& dataset) {
  const bool by_matlab = file.has_attribute(dataset, "MATLAB_class");  // the file has MATLAB's axes backwards
  const std::int64_t pixels = file.shape(dataset)[by_matlab ? 0 : 1];
  const std::string rows = by_matlab ? "x[:].T" : "x[:]";
  const auto side_of = [](std::int64_t area) {
    const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(area))));
    return side * side == area ? side : 0;
  };
  const std::int64_t colour = pixels % 3 == 0 ? side_of(pixels / 3) : 0, grey = side_of(pixels);
  const std::string side = cat(colour > 0 ? colour : grey);
  if (colour > 0)
    return as_array(
        file, dataset,
        cat("give each picture its axes; if a row has the channels pixel by pixel, not one after the other as "
            "in CIFAR, with (-1, ",
            side, ", ", side, ", 3), and if the pictures are grey or not square, with their own (-1, HEIGHT, WIDTH)"),
        cat(rows, ".reshape(-1, 3, ", side, ", ", side, ")"));
  if (grey > 0)
    return as_array(file, dataset,
                    "give each picture its axes; if it is not square or not grey, with its own (-1, HEIGHT, WIDTH, 3)",
                    cat(rows, ".reshape(-1, ", side, ", ", side, ")"));
  return as_array(file, dataset,
                  cat("give each picture its axes, with its own height, width and channels, which make ", pixels),
                  cat(rows, ".reshape(-1, HEIGHT, WIDTH, 3)"));
}

}  // namespace

void refuse_shape(const h5::File& file, const std::string& dataset, const std::string& found) {
  const h5::Shape shape = file.shape(dataset);
  if (file.type(dataset) == "values of variable length") {
    const auto long_axes = std::ranges::count_if(shape, [](std::int64_t extent) { return extent != 1; });
    const h5::Guard guard;
    const h5::Handle handle = file.open_dataset(dataset), type(H5Dget_type(handle.get()), H5Tclose);
    const h5::Handle element(H5Tget_super(type.get()), H5Tclose);
    const bool is_flat = long_axes <= 1 && !shape.empty() && H5Tget_class(element.get()) == H5T_INTEGER &&
                         H5Tget_size(element.get()) == 1;
    throw Error(cat(found, " of variable-length values"),
                is_flat ? as_encoded(file, dataset, cat(bytes_of_files, ", as bytes and with one axis"),
                                     shape.size() == 1 ? "x[i].view('u1')" : "x[:].ravel()[i].view('u1')")
                        : expected_images);
  }
  if (shape.size() == 2 && is_picture_file(first_value(file, dataset)))
    throw Error(found, as_encoded(file, dataset, bytes_of_files, "numpy.trim_zeros(x[i], 'b')"));
  if (shape.size() == 2) throw Error(found, advice_on_rows_of_pixels(file, dataset));
  if (shape.size() == 5)
    throw Error(found, as_array(file, dataset, "if the first two axes count the images, join them",
                                "x[:].reshape(-1, *x.shape[2:])"));
  throw Error(found, expected_images);
}

std::string advice_on_group_of_images(const h5::File& file, const std::string& group) {
  constexpr std::size_t least_images = 3, most_looked_at_members = 64;
  const std::vector<std::string> names = file.list(group);
  if (names.size() < least_images) return "";
  h5::Shape shape;
  bool same = true, all_numbers = true;
  for (std::size_t i = 0; i < std::min(names.size(), most_looked_at_members); ++i) {
    const std::string path = cat(group, "/", names[i]);
    const h5::Guard guard;
    const h5::Handle object(H5Oopen(file.id(), path.c_str(), H5P_DEFAULT), H5Oclose);
    if (object.get() < 0 || H5Iget_type(object.get()) != H5I_DATASET || file.type(path) != "u8") return "";
    const h5::Shape found = file.shape(path);
    if (i == 0) shape = found;
    if (found.size() != shape.size()) return "";
    same = same && found == shape;
    all_numbers = all_numbers && names[i].find_first_not_of("0123456789") == std::string::npos;
  }
  const std::string keys =
      all_numbers ? "sorted(x, key=int)" : "sorted(x, key=lambda k: [int(n) for n in re.findall(r'[0-9]+', k)])";
  const std::string order = "put its images into one data set, in the order of the labels";
  if (shape.size() == 1) return as_encoded(file, group, order, cat("x[", keys, "[i]][:]"));
  if (shape.size() != 2 && shape.size() != 3) return "";
  if (same) return as_array(file, group, order, cat("numpy.stack([x[k][:] for k in ", keys, "])"));
  return "it has one image in each data set, of several sizes: write them as PNG files in a folder for each class, for "
         "ringtrain-data images FOLDER";
}

std::string advice_on_text_labels(const h5::File& file, const std::string& dataset) {
  std::string text = first_value(file, dataset);
  text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
  if (!text.empty() && text.find_first_not_of("0123456789 ") == std::string::npos)
    return "they are numbers as text: write them again as labels[:].astype(int)";
  return "number the names by one list, the same list for all splits: classes = ['cat', 'dog']; "
         "y = [classes.index(name) for name in labels.asstr()[:]]";
}

std::string matlab_advice_on_names(const std::string& variable, const std::string& names) {
  return cat("number the names by one list, the same list for all splits; ",
             in_matlab(cat("classes = {'cat', 'dog'}; [~, ", variable, "] = ismember(", names, ", classes); ", variable,
                           " = ", variable, " - 1")));
}

std::string matlab_advice_on_cell(const h5::File& file, const std::string& dataset) {
  const std::string name = variable_name(dataset);
  std::string kind;
  const h5::Guard guard;
  if (file.type(dataset) == "references") {
    const std::string bytes = first_value(file, dataset);
    hobj_ref_t reference = 0;
    if (bytes.size() >= sizeof reference) {
      std::memcpy(&reference, bytes.data(), sizeof reference);
      const h5::Handle handle = file.open_dataset(dataset);
      const h5::Handle target(H5Rdereference2(handle.get(), H5P_DEFAULT, H5R_OBJECT, &reference), H5Oclose);
      std::string path(256, '\0');
      const ssize_t length = target.get() < 0 ? 0 : H5Iget_name(target.get(), path.data(), path.size());
      path.resize(static_cast<std::size_t>(std::clamp<ssize_t>(length, 0, 255)));
      if (!path.empty() && file.has_attribute(path, "MATLAB_class")) kind = file.read_string(path, "MATLAB_class");
    }
    H5Eclear2(H5E_DEFAULT);
  }
  if (kind == "char" || kind == "string") return matlab_advice_on_names(name, name);
  return in_matlab(cat(name, " = cell2mat(", name, ")"));
}

std::string advice_on_label_rows(const h5::File& file, const std::string& dataset, bool is_matlab) {
  const h5::Shape shape = file.shape(dataset);
  const auto is_long = [](std::int64_t extent) { return extent != 1; };
  const auto first = std::ranges::find_if(shape, is_long), second = std::find_if(first + 1, shape.end(), is_long);
  // There are fewer classes, or columns, than images.
  const bool first_is_shorter = *first < *second;
  const auto shorter = static_cast<std::size_t>((first_is_shorter ? first : second) - shape.begin());
  const auto longer = static_cast<std::size_t>((first_is_shorter ? second : first) - shape.begin());
  const Rows found = rows_from(file, dataset, longer, 0);
  // The values of a label lie side by side, or as far apart as there are rows.
  const std::int64_t values = shape[shorter], stride = first_is_shorter ? found.rows : 1;
  bool is_one_hot = found.rows > 0;
  for (std::int64_t row = 0; row < found.rows && is_one_hot; ++row) {
    double sum = 0;
    for (std::int64_t k = 0; k < values; ++k) {
      const double value =
          found.values[static_cast<std::size_t>(first_is_shorter ? k * stride + row : row * values + k)];
      is_one_hot = is_one_hot && value >= 0 && value <= 1;
      sum += value;
    }
    is_one_hot = is_one_hot && std::abs(sum - 1) < 1e-3;
  }
  const std::string name = variable_name(dataset);
  const auto matlab_axis = shape.size() - shorter;
  if (is_one_hot)
    return cat("each label is a row of zeros and a one (one-hot); make numbers of them: ",
               is_matlab ? in_matlab(cat("[~, ", name, "] = max(", name, ", [], ", matlab_axis, "); ", name, " = ",
                                         name, " - 1"))
                         : cat("labels.argmax(axis=", shorter, ")"));
  const std::string column = first_is_shorter ? "labels[0]" : "labels[:, 0]";
  const std::string matlab_column = cat(name, matlab_axis == 1 ? "(1, :)" : "(:, 1)");
  return is_matlab ? cat("if each image has several numbers, choose one; ", in_matlab(cat(name, " = ", matlab_column)),
                         "; if the labels are in batches: ", name, " = ", name, "(:)")
                   : cat("if each image has several numbers, choose one: ", column,
                         "; if the labels are in batches, join them: labels[:].reshape(-1)");
}

}  // namespace ringtrain
