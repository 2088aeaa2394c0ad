// Everything that a run needs to go on, by name, in canonical layout; nothing in it knows the number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/slow_work.h"
#include "run/stop_cost.h"

namespace ringtrain {

struct NamedArray {
  std::string name;  // "weights/lstm.weight_ih_l0", "optimizer/exp_avg/linear.bias", "state/hidden"
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// A count, or a measured quantity. Earlier versions wrote counts as fractions too.
using Number = std::variant<std::int64_t, double>;

struct Checkpoint {
  std::int64_t step = 0;                     // finished updates
  std::map<std::string, std::string> texts;  // "experiment" (YAML), "model", "dataset_uuid", "execution" (JSON), ...
  std::map<std::string, Number> numbers;     // "samples", "best_loss", "elapsed_seconds", ...
  std::vector<NamedArray> arrays;
  const NamedArray& array(const std::string& name) const;  // throws Error naming what is missing
  const std::string& text(const std::string& name) const;  // throws Error naming what is missing
  // What earlier versions did not write has a value that means the same as its absence.
  std::string text_or(const std::string& name, std::string absent) const;
  double number_or(const std::string& name, double absent) const;
  // Throw Error where there is none, or (whole) it is no whole number of 64 bits.
  double number(const std::string& name) const;
  std::int64_t whole(const std::string& name) const;
  std::int64_t whole_or(const std::string& name, std::int64_t absent) const;
  // The same as array(name), and its shape must be the model's: throws Error "checkpoint of another model: ..." with
  // both shapes.
  const NamedArray& array(const std::string& name, const std::vector<std::int64_t>& shape) const;

 private:
  const Number& find(const std::string& name) const;
};

// results/checkpoints.md lists every name. HDF5, self-describing: a group per name prefix, one data set per array with
// attribute crc32c, texts and numbers as attributes of the root (texts too long for an attribute as u8 data sets in
// texts/), `contents` (u8: a line with name and shape per array, in order), attributes_crc32c over step, texts, numbers
// and contents, `complete` last. Written to <path>.tmp, synced, opened again, every checksum compared, then renamed. On
// any failure (a full disk) the temporary is removed, `path` is as it was before, and Error is thrown. `progress`: of
// what has reached the disk, and of what has been read back.
void write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Progress& progress = {});

// Throws Error naming the file and what is wrong: not HDF5, truncated, another schema, not complete, an array missing
// or with a wrong checksum. Arrays without this prefix are checked all the same, but not kept in memory.
Checkpoint read_checkpoint(const std::string& path, std::string_view prefix = "", const Progress& progress = {});
// The same without the arrays, which are not looked at.
Checkpoint read_checkpoint_header(const std::string& path);
inline constexpr std::string_view weights_prefix = "weights/";

// Files of a run folder: checkpoints/step-000001234.h5, and best.h5 (a copy that `keep` does not delete).
std::string checkpoint_path(const std::string& run_dir, std::int64_t step);
// Steps of the checkpoints that lie there, whole or not, newest first.
std::vector<std::int64_t> checkpoint_steps(const std::string& run_dir);
// Newest checkpoint that reads without error; "" when there is none. best.h5 counts as the oldest: the last resort when
// all others are damaged or gone. Damaged ones are reported through `warnings`. Throws Error when a file may not be
// read.
std::string newest_checkpoint(const std::string& run_dir, std::vector<std::string>* warnings,
                              const Progress& progress = {});

// Writes a checkpoint into the folder of checkpoints, and removes it again.
CheckpointCost try_write(const std::string& run_dir, const Checkpoint& checkpoint, const Progress& progress = {});

// Writes in a background thread while training goes on; rank 0 owns one. The thread calls no MPI.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string run_dir, std::int64_t keep);
  ~CheckpointWriter();  // waits for the writing to end
  // Waits for the one before, throws what that one threw, then starts writing. A checkpoint with a value that is not
  // finite counts as a failed write. After success the older ones are deleted
  // down to `keep` (best.h5 and kept_steps() apart), and those of later steps, which a resumed run has passed over as
  // damaged.
  // `best`: write best.h5 as well.
  void start(Checkpoint checkpoint, bool best);
  void finish();                   // waits; throws what the writing threw
  SlowWork& work();                // the writing under way: for wait_together()
  CheckpointCost slowest() const;  // of all that have been written; after finish()
  bool failed() const;             // the last write failed; the next start() or finish() will say how. Never blocks.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
