#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/hdf5.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* checkpoint_schema = "ringtrain-checkpoint";
constexpr std::int64_t format_number = 1;
constexpr const char* damaged_hint =
    "remove this file or restore it from a copy; --resume finds the newest whole checkpoint of a run by itself";
// HDF5 keeps attributes in object headers of 64 KiB.
constexpr std::size_t longest_attribute = 32768;
constexpr std::int64_t sync_bytes = 64 << 20;
constexpr const char* reserved[] = {"schema", "format", "step", "attributes_crc32c", "complete"};

std::uint32_t crc_of(const void* data, std::size_t bytes, std::uint32_t crc = 0) {
  return crc32c({static_cast<const std::uint8_t*>(data), bytes}, crc);
}

std::uint32_t crc_of(const std::string& text, std::uint32_t crc = 0) {
  return crc_of(text.data(), text.size(), crc);
}

std::uint32_t crc_of(const NamedArray& array) {
  return crc_of(array.values.data(), array.values.size() * sizeof(float));
}

// Returns a line per array, with its name and shape. A reader of the file sees from it which arrays must be there.
std::string contents_of(const Checkpoint& checkpoint) {
  std::string text;
  for (const NamedArray& array : checkpoint.arrays) text += array.name + "\t" + shape_text(array.shape) + "\n";
  return text;
}

// Returns the checksum of the root's attributes. HDF5 has no checksum for them, so a flipped bit would change a counter
// without an error.
std::uint32_t header_crc(const Checkpoint& checkpoint, const std::string& contents) {
  std::uint32_t crc = crc_of(&checkpoint.step, sizeof checkpoint.step);
  for (const auto& [name, text] : checkpoint.texts) {
    crc = crc_of(name + '\0' + std::to_string(text.size()) + '\0' + text, crc);
  }
  for (const auto& [name, number] : checkpoint.numbers)
    crc = std::visit([&, &text = name](auto value) { return crc_of(&value, sizeof value, crc_of(text + '\0', crc)); },
                     number);
  return crc_of(contents, crc);
}

void write_bytes(h5::File& file, const std::string& name, const std::string& text) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  file.write<std::uint8_t>(name, bytes, {static_cast<std::int64_t>(text.size())});
}

std::string read_bytes(const h5::File& file, const std::string& name) {
  const std::vector<std::uint8_t> bytes = file.read<std::uint8_t>(name);
  return {bytes.begin(), bytes.end()};
}

bool is_reserved(const std::string& name) {
  return std::ranges::find(reserved, name) != std::end(reserved);
}

void check_names(const Checkpoint& checkpoint) {
  for (const auto& entry : checkpoint.texts) {
    if (is_reserved(entry.first) || checkpoint.numbers.count(entry.first) != 0) {
      throw Error(cat("checkpoint: the name '", entry.first, "' is taken"));
    }
  }
  for (const auto& entry : checkpoint.numbers) {
    if (is_reserved(entry.first)) throw Error(cat("checkpoint: the name '", entry.first, "' is taken"));
  }
  for (const NamedArray& array : checkpoint.arrays) {
    const bool bad = array.name.empty() || array.name.front() == '/' || array.name.back() == '/' ||
                     array.name.find_first_of("\t\n") != std::string::npos || array.name == "contents" ||
                     array.name.starts_with("texts/");
    if (bad) throw Error(cat("checkpoint: '", array.name, "' cannot be the name of an array"));
  }
}

// Data in the page cache does not count as progress. The file is therefore flushed to disk piece by piece.
void write_file(const std::string& path, const Checkpoint& checkpoint, const Progress& progress) {
  h5::File file = h5::File::create(path);
  std::int64_t waiting = 0;
  const auto after_block = [&](std::int64_t bytes) {
    waiting += bytes;
    if (waiting < sync_bytes) return;
    file.flush();
    if (progress) progress(std::exchange(waiting, 0));
  };
  file.write_attribute("/", "schema", std::string(checkpoint_schema));
  file.write_attribute("/", "format", format_number);
  file.write_attribute("/", "step", checkpoint.step);
  for (const auto& [name, text] : checkpoint.texts) {
    // HDF5's strings end at the first NUL, which can be a symbol of a text (--alphabet bytes).
    if (text.size() > longest_attribute || text.find('\0') != std::string::npos) {
      write_bytes(file, "texts/" + name, text);
    } else {
      file.write_attribute("/", name, text);
    }
  }
  for (const auto& [name, number] : checkpoint.numbers)
    std::visit([&, &text = name](auto value) { file.write_attribute("/", text, value); }, number);
  for (const NamedArray& array : checkpoint.arrays) {
    file.write<float>(array.name, array.values, array.shape, after_block);
    file.write_attribute(array.name, "crc32c", static_cast<std::int64_t>(crc_of(array)));
  }
  const std::string contents = contents_of(checkpoint);
  write_bytes(file, "contents", contents);
  file.write_attribute("/", "attributes_crc32c", static_cast<std::int64_t>(header_crc(checkpoint, contents)));
  file.flush();
  if (progress) progress(waiting);
  file.write_attribute("/", "complete", std::int64_t{1});
  file.flush();
  file.close();
}

void check_header(const h5::File& file) {
  const std::string& path = file.path();
  bool has_schema = false;
  try {
    has_schema = file.has_attribute("/", "schema");
  } catch (const Error& error) {  // HDF5's own checksum of the attributes failed
    throw Error(cat(path, ": the attributes or the list of contents are damaged (", error.what(), ")"), damaged_hint,
                error.where());
  }
  if (!has_schema) {
    throw Error(
        cat(path, ": is not a checkpoint: the attribute 'schema' is missing, expected \"", checkpoint_schema, "\""),
        "checkpoints lie in <run folder>/checkpoints/step-*.h5");
  }
  if (const std::string found = file.read_string("/", "schema"); found != checkpoint_schema) {
    throw Error(cat(path, ": is not a checkpoint: schema is \"", found, "\", expected \"", checkpoint_schema, "\""),
                found == "ringtrain" ? "this is a data set; checkpoints lie in <run folder>/checkpoints/step-*.h5"
                                     : "checkpoints lie in <run folder>/checkpoints/step-*.h5");
  }
  const bool has_format = file.has_attribute("/", "format");
  if (const std::int64_t found = has_format ? file.read_integer("/", "format") : 0; found != format_number) {
    throw OtherFormat(
        cat(path, ": the checkpoint has ", has_format ? cat("the format ", found) : "no format number",
            ", expected the format ", format_number),
        "use the program that wrote it (run.json names its commit), or start a new run in another run.dir");
  }
  if (!file.has_attribute("/", "complete") || file.read_integer("/", "complete") != 1) {
    throw Error(cat(path, ": is not complete (its writer was interrupted)"), damaged_hint);
  }
}

herr_t keep_name(hid_t, const char* name, const H5A_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
}

std::vector<std::string> attribute_names(const h5::File& file) {
  const h5::Guard lock;
  std::vector<std::string> names;
  if (H5Aiterate2(file.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, keep_name, &names) < 0) {
    throw Error(cat(file.path(), ": cannot list the attributes"), damaged_hint);
  }
  return names;
}

H5T_class_t class_of_attribute(const h5::File& file, const std::string& name) {
  const h5::Guard lock;
  const h5::Handle attribute(H5Aopen(file.id(), name.c_str(), H5P_DEFAULT), H5Aclose);
  const h5::Handle type(H5Aget_type(attribute.get()), H5Tclose);
  return H5Tget_class(type.get());
}

// Reads everything but the arrays and returns the text of `contents`. Every piece of metadata counts as progress,
// because many small reads come before the first array, and a file server may be slow.
std::string read_header(const h5::File& file, Checkpoint& checkpoint, const Progress& progress) {
  const auto came = [&] {
    if (progress) progress(1);
  };
  came();
  check_header(file);
  came();
  checkpoint.step = file.read_integer("/", "step");
  for (const std::string& name : attribute_names(file)) {
    came();
    if (is_reserved(name)) continue;
    const H5T_class_t type = class_of_attribute(file, name);
    if (type == H5T_STRING)
      checkpoint.texts[name] = file.read_string("/", name);
    else if (type == H5T_INTEGER)
      checkpoint.numbers[name] = file.read_integer("/", name);
    else
      checkpoint.numbers[name] = file.read_real("/", name);
  }
  came();
  if (file.has("texts")) {
    for (const std::string& name : file.list("texts")) checkpoint.texts[name] = read_bytes(file, "texts/" + name);
  }
  came();
  const std::string contents = read_bytes(file, "contents");
  came();
  const auto stored = static_cast<std::uint32_t>(file.read_integer("/", "attributes_crc32c"));
  if (const std::uint32_t found = header_crc(checkpoint, contents); found != stored) {
    throw Error(
        cat(file.path(), ": the attributes or the list of contents are damaged: crc32c ", found, ", expected ", stored),
        damaged_hint);
  }
  return contents;
}

NamedArray read_array(const h5::File& file, const std::string& name, const std::string& shape,
                      const Progress& progress) {
  if (progress) progress(1);  // metadata counts as progress, as in read_header()
  if (!file.has(name)) throw Error(cat(file.path(), ": array '", name, "' is missing"), damaged_hint);
  NamedArray array{name, file.shape(name), {}};
  if (shape_text(array.shape) != shape) {
    throw Error(cat(file.path(), ": array '", name, "' has the shape ", shape_text(array.shape), ", expected ", shape),
                damaged_hint);
  }
  array.values = file.read<float>(name, progress);
  const auto stored = static_cast<std::uint32_t>(file.read_integer(name, "crc32c"));
  if (const std::uint32_t found = crc_of(array); found != stored) {
    throw Error(cat(file.path(), ": array '", name, "' is damaged: crc32c ", found, ", expected ", stored),
                damaged_hint);
  }
  return array;
}

// Passes one array at a time to `take`, so that checking a file needs only the memory of its largest array.
Checkpoint read_through(const std::string& path, const Progress& progress,
                        const std::function<void(NamedArray&&)>& take) {
  const h5::File file = h5::File::open(path);
  Checkpoint checkpoint;
  std::istringstream contents(read_header(file, checkpoint, progress));
  for (std::string line; std::getline(contents, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) throw Error(cat(path, ": bad line in 'contents': ", line), damaged_hint);
    take(read_array(file, line.substr(0, tab), line.substr(tab + 1), progress));
  }
  return checkpoint;
}

void verify(const std::string& path, const Progress& progress) {
  read_through(path, progress, [](NamedArray&&) {});
}

bool is_gone(const std::string& path) {
  std::error_code failed;
  return fs::symlink_status(path, failed).type() == fs::file_type::not_found;
}

// Throws Error if the operating system cannot read the whole file. The file may still be undamaged. If it were skipped,
// the run would continue from an older checkpoint and later delete this one.
void require_readable(const std::string& path, const Progress& progress) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int reason = file < 0 ? errno : 0;
  std::vector<char> piece(1 << 20);
  while (reason == 0) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got == 0) break;
    if (got < 0 && errno != EINTR) reason = errno;
    if (got > 0 && progress) progress(got);
  }
  if (file >= 0) ::close(file);
  if (reason == 0 || reason == EISDIR || is_gone(path)) return;
  throw Error(cat(path, ": cannot read: ", std::strerror(reason)),
              cat("the file may be undamaged: ",
                  reason == EACCES ? "make it readable for you" : "use --resume when the disk can be read again",
                  ", or move the file away to continue from an older checkpoint"));
}

// `kind` is what the map holds: "text".
template <class Value>
const Value& stored_value(const std::map<std::string, Value>& values, const std::string& name, const char* kind) {
  const auto found = values.find(name);
  if (found == values.end())
    throw Error(cat("checkpoint without a ", kind, " '", name, "': another program has written it, or it is damaged"),
                damaged_hint);
  return found->second;
}

constexpr std::string_view name_prefix = "step-", name_suffix = ".h5";

std::string file_of_step(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 9) digits.insert(0, 9 - digits.size(), '0');
  return cat(name_prefix, digits, name_suffix);
}

// Returns nothing for a name that file_of_step() does not give.
std::optional<std::int64_t> step_of_file(const std::string& file_name) {
  if (!file_name.starts_with(name_prefix) || !file_name.ends_with(name_suffix)) return std::nullopt;
  std::int64_t step = 0;
  std::string_view digits = file_name;
  digits.remove_prefix(name_prefix.size());
  digits.remove_suffix(name_suffix.size());
  return read_number(digits, step) && file_of_step(step) == file_name ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return cat("[", joined(shape), "]");
}

const std::string& Checkpoint::text(const std::string& name) const {
  return stored_value(texts, name, "text");
}

std::string Checkpoint::text_or(const std::string& name, std::string absent) const {
  const auto found = texts.find(name);
  return found == texts.end() ? absent : found->second;
}

double Checkpoint::number_or(const std::string& name, double absent) const {
  return numbers.contains(name) ? number(name) : absent;
}

double Checkpoint::number(const std::string& name) const {
  return std::visit([](auto value) { return static_cast<double>(value); }, stored_value(numbers, name, "number"));
}

std::int64_t Checkpoint::whole(const std::string& name) const {
  const Number& number = stored_value(numbers, name, "number");
  if (const auto* count = std::get_if<std::int64_t>(&number)) return *count;
  throw Error(cat("the checkpoint's ", name, " is ", std::get<double>(number), ", expected an integer"), damaged_hint);
}

const NamedArray& Checkpoint::array(const std::string& name, const std::vector<std::int64_t>& shape) const {
  constexpr const char* hint = "resume with the experiment that wrote it (experiment.yaml in its run folder)";
  const auto found = std::ranges::find(arrays, name, &NamedArray::name);
  if (found == arrays.end())
    throw Error(cat("checkpoint of another model or optimizer: it has no array '", name, "'"), hint);
  if (found->shape != shape)
    throw Error(cat("checkpoint of another model: array '", name, "' has the shape ", shape_text(found->shape),
                    ", this experiment's model wants ", shape_text(shape)),
                hint);
  return *found;
}

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Progress& progress) {
  check_names(checkpoint);
  const std::string temporary = path + ".tmp";
  ::unlink(temporary.c_str());  // left by a killed job; the run folder's lock keeps other jobs out
  try {
    publish_written(temporary, path, [&] {
      write_file(temporary, checkpoint, progress);
      verify(temporary, progress);
    });
  } catch (const Error& error) {
    throw Error(cat("the checkpoint of step ", checkpoint.step, " could not be written: ", error.what()), error.hint(),
                error.where());
  }
}

Checkpoint read_checkpoint(const std::string& path, std::string_view prefix, const Progress& progress) {
  std::vector<NamedArray> arrays;
  Checkpoint checkpoint = read_through(path, progress, [&](NamedArray&& array) {
    if (array.name.starts_with(prefix)) arrays.push_back(std::move(array));
  });
  checkpoint.arrays = std::move(arrays);
  return checkpoint;
}

Checkpoint read_checkpoint_header(const std::string& path) {
  const h5::File file = h5::File::open(path);
  Checkpoint checkpoint;
  read_header(file, checkpoint, {});
  return checkpoint;
}

std::string checkpoint_folder(const std::string& run_dir) {
  return run_dir + "/checkpoints";
}

std::string checkpoint_path(const std::string& run_dir, std::int64_t step) {
  return cat(checkpoint_folder(run_dir), '/', file_of_step(step));
}

std::string best_checkpoint_path(const std::string& run_dir) {
  return checkpoint_folder(run_dir) + "/best.h5";
}

std::vector<std::int64_t> checkpoint_steps(const std::string& run_dir) {
  std::vector<std::int64_t> steps;
  std::error_code code;
  for (fs::directory_iterator entry(checkpoint_folder(run_dir), code), end; !code && entry != end;
       entry.increment(code)) {
    if (const auto step = step_of_file(entry->path().filename().string())) steps.push_back(*step);
  }
  if (code && code != std::errc::no_such_file_or_directory && code != std::errc::not_a_directory)
    throw Error(cat(checkpoint_folder(run_dir), ": cannot list the checkpoints: ", code.message()),
                "make the folder readable, or wait until its disk can be read again");
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

// Returns nothing if the file is damaged. `damage` then receives the error.
static std::optional<Checkpoint> read_unless_damaged(const std::string& path, std::string_view prefix,
                                                     const Progress& progress, std::string& damage) {
  try {
    return read_checkpoint(path, prefix, progress);
  } catch (const OtherFormat&) {
    throw;
  } catch (const Error& error) {
    damage = error.what();
    return std::nullopt;
  }
}

// Returns the paths of a run's checkpoints, the newest first. best.h5 counts as the oldest.
static std::vector<std::string> checkpoint_files(const std::string& run_dir) {
  std::vector<std::string> files;
  for (const std::int64_t step : checkpoint_steps(run_dir)) files.push_back(checkpoint_path(run_dir, step));
  if (const std::string best = best_checkpoint_path(run_dir); fs::exists(best)) files.push_back(best);
  return files;
}

std::optional<FoundCheckpoint> read_newest_checkpoint(const std::string& run_dir, std::vector<std::string>& warnings,
                                                      std::string_view prefix, const Progress& progress) {
  constexpr int most_listings = 20;
  constexpr auto pause = std::chrono::milliseconds(50);  // a network file system may list a removed file for a while
  std::vector<std::string> files = checkpoint_files(run_dir), damages;
  int listings = 1;
  for (std::size_t i = 0; i < files.size();) {
    const std::string& path = files[i];
    std::string damage;
    std::optional<Checkpoint> whole = read_unless_damaged(path, prefix, progress, damage);
    if (!whole) {
      require_readable(path, progress);
      whole = read_unless_damaged(path, prefix, progress, damage);  // the first error may have been temporary
    }
    if (whole) {
      for (const std::string& skipped : damages) warnings.push_back("checkpoint skipped: " + skipped);
      return FoundCheckpoint{path, std::move(*whole)};
    }
    // A run that trains has removed the file, so it has written a newer one.
    if (is_gone(path) && listings++ < most_listings) {
      std::this_thread::sleep_for(pause);
      files = checkpoint_files(run_dir);
      damages.clear();
      i = 0;
      continue;
    }
    damages.push_back(damage);
    ++i;
  }
  if (damages.empty()) return std::nullopt;
  throw Error(cat(checkpoint_folder(run_dir), ": none of the checkpoints can be read, and none was changed:\n    ",
                  joined(damages, "\n    ")),
              "copy an older checkpoint there. To begin again at step 0, remove these files, or train without --resume "
              "in another folder (run.dir)");
}

}  // namespace ringtrain
