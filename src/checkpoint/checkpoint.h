// A checkpoint: everything that a run needs to continue, by name and in PyTorch's layout. It does not depend on the
// number of ranks.
//
// This folder saves and restores runs. run_state.h says what a checkpoint holds. take_snapshot() and load_trainer()
// (snapshot.h) copy between a Trainer and a Checkpoint. write_checkpoint() and read_checkpoint() below copy between a
// Checkpoint and an HDF5 file. shared_resume_point() (resume.h) finds where a resumed run continues, and
// check_belongs() says what may change before it does. safetensors.h reads and writes the weights of other programs.
// Begin reading with the struct Checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"

namespace ringtrain {

struct NamedArray {
  std::string name;  // "weights/lstm.weight_ih_l0", "optimizer/exp_avg/linear.bias", "state/lstm"
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[3, 4]"

// A count is an integer, and a measured quantity is a double.
using Number = std::variant<std::int64_t, double>;

struct Checkpoint {
  std::int64_t step = 0;                     // finished updates
  std::map<std::string, std::string> texts;  // "experiment" (YAML), "model", "train_uuid", "machine", ...
  std::map<std::string, Number> numbers;     // "samples", "best_loss", "elapsed_seconds", ...
  std::vector<NamedArray> arrays;
  const std::string& text(const std::string& name) const;  // throws Error with the missing name
  // These return `absent` if the value is missing. They are for values that only some runs have.
  std::string text_or(const std::string& name, std::string absent) const;
  double number_or(const std::string& name, double absent) const;
  // number() and whole() throw Error if the number is missing. whole() also throws Error if it is not an integer.
  double number(const std::string& name) const;
  std::int64_t whole(const std::string& name) const;
  // Throws Error with the missing name, or "checkpoint of another model: ..." with both shapes if the shape is another.
  const NamedArray& array(const std::string& name, const std::vector<std::int64_t>& shape) const;
};

// Called with the bytes that were written or read since the last call.
using Progress = std::function<void(std::int64_t bytes)>;

// Writes a self-describing HDF5 file; results/checkpoints.md lists every name. The file has a group per name prefix and
// a data set per array with the attribute crc32c. Texts and numbers are attributes of the root; texts too long for that
// are u8 data sets in texts/. `contents` (u8) has a line with name and shape for each array, in order.
// attributes_crc32c covers step, texts, numbers and contents. `format` says which names a file has and what they mean;
// it changes with them. `complete` is written last.
//
// The file is written to <path>.tmp, synced and opened again. All checksums are compared, and then the file is renamed.
// On any failure, for example a full disk, the temporary file is removed, `path` is unchanged, and Error is thrown.
// `progress` is called with the bytes that have reached the disk, and then with the bytes that have been read back.
void write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Progress& progress = {});

// Thrown for a checkpoint of another format, which only the program that wrote it can read.
class OtherFormat : public Error {
 public:
  using Error::Error;
};

// Throws Error with the file's name and the problem: the file is not HDF5, is truncated, has another schema or format
// or is not complete, or an array is missing or has a wrong checksum. Arrays whose names do not begin with `prefix` are
// checked too, but not kept in memory.
Checkpoint read_checkpoint(const std::string& path, std::string_view prefix = "", const Progress& progress = {});
// Reads everything but the arrays. The arrays are not checked.
Checkpoint read_checkpoint_header(const std::string& path);

// Returns the folder of a run's checkpoints.
std::string checkpoint_folder(const std::string& run_dir);
// Returns the path of a checkpoint in this folder: step-000001234.h5.
std::string checkpoint_path(const std::string& run_dir, std::int64_t step);
// Returns the path of best.h5 in the same folder, a copy of the best checkpoint, which is never deleted.
std::string best_checkpoint_path(const std::string& run_dir);
// Returns the steps of all checkpoint files in the folder, complete or not, newest first. No folder: there are none.
// Throws Error if the folder cannot be listed.
std::vector<std::int64_t> checkpoint_steps(const std::string& run_dir);

struct FoundCheckpoint {
  std::string path;
  Checkpoint checkpoint;
};

// Reads the newest checkpoint that can be read without error. Nothing: the run has no checkpoints. best.h5 counts as
// the oldest, so it is used only if all others are damaged or missing. `warnings` receives a line for each damaged
// file. See read_checkpoint() for `prefix`. Throws Error that names all files if all are damaged, and if a file cannot
// be read for another reason than damage, for example its permissions or its format. The run may train at the same
// time: if a file disappears before it has been read, the files are listed again.
std::optional<FoundCheckpoint> read_newest_checkpoint(const std::string& run_dir, std::vector<std::string>& warnings,
                                                      std::string_view prefix = "", const Progress& progress = {});

}  // namespace ringtrain
