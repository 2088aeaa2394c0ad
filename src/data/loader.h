// Background threads that keep a ring of micro-batches ahead of the trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/batch_course.h"
#include "data/dataset.h"
#include "data/image_transform.h"

namespace ringtrain {

// A target that does not count in the loss: padding rows, masked blanks, tails.
inline constexpr std::int32_t ignored_target = -1;

enum class TextOrder { rows, windows, streams };  // names' rows | shuffled windows | streams with carried state

struct LoaderPlan {
  std::uint64_t seed = 0;
  TextOrder order = TextOrder::rows;  // images: rows
  std::int64_t sequence = 0;          // characters per sample (T); for rows the data set's context_length; images: 1
  bool mask_blanks = false;           // pad_id targets become ignored_target
  ImageTransform image;               // images only
  bool has_pixels = true;             // images only; false: their labels are all that is read
  std::int64_t reads = 8;             // images only: records being read at the same time
  std::int64_t global_batch = 0;
  // This rank's rows of every global batch: [first_row, first_row + rows). Where `span` ranks share the workers of
  // batch norm: of their span x rows rows from first_row on, the micro-batches member, member + span, member + 2 span,
  // ...
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t micro_batch = 0;  // divides rows
  std::int64_t span = 1, member = 0;
  BatchCourse course;            // training; without stages: global_batch over the whole run
  bool evaluation = false;       // natural order, every sample (every character) exactly once, tails padded
  std::int64_t threads = 1;      // that fill batches; images: that decode
  std::int64_t prefetch = 4;
  bool on_request = false;  // training: only the global batches that Loader::request() names are read
};

// One device pass of one rank.
struct MicroBatch {
  std::int64_t epoch = 0;         // evaluation: 0
  std::int64_t offset = 0;        // samples of the epoch before this global batch
  std::int64_t micro_step = 0;    // within the step
  std::int64_t first_row = 0;     // row 0's place in the global batch: the key of dropout and of carried state
  std::int64_t step_targets = 0;  // targets that count in this rank's whole share of the step
  std::int64_t valid_rows = 0;    // rows with at least one counted target come first; < micro_batch only in a tail
  bool resets_state = false;      // streams: the carried state starts from zero at this step
  std::span<const std::uint8_t> inputs;   // [micro_batch, sequence]; images: [micro_batch, size, size, 3]
  std::span<const std::int32_t> targets;  // [micro_batch, sequence], ignored_target where not counted
};

// Training, order rows/windows: the step at offset o of epoch e takes positions [o, o + B) of EpochOrder(seed, e, N);
// what is left at the end and fills no batch is dropped. Another B on the run's course has the same share for each
// rank, B / global_batch x (first_row, rows), in more micro-batches. course.keeps_rest: what is left at the end is a
// batch of as many rows, whose last ones count nothing: padding rows of text; the first images of the epoch once more,
// so that batch norm sees images and not padding. Windows: N = (T - L) / L windows of L + 1 characters at stride L from
// a phase in [0, L) keyed by (seed, epoch). Streams: row j of the B global rows reads its own contiguous piece of the
// text, piece = (T - 1) / B characters, L per step, piece / L steps per epoch. Evaluation: rows/windows in natural
// order (windows at phase 0, the last one shorter and masked), streams in B rows of ceil((T - 1) / B) characters: every
// target exactly once whatever the rank count.
std::int64_t samples_per_epoch(const DatasetIndex& index, const LoaderPlan& plan);  // N (streams: B x steps)
std::int64_t steps_per_epoch(const DatasetIndex& index,
                             const LoaderPlan& plan);  // of global_batch; throws Error when N < B

class BatchSource;

class Loader {
 public:
  // `source`: what fills the micro-batches; null: the data set, as the plan says.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan, std::unique_ptr<BatchSource> source);
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan);
  ~Loader();  // ends the threads
  // Starts (again) with the global batch after the first `offset` samples of this epoch (evaluation: epoch 0); what was
  // read ahead is thrown away. `batch`: samples of every global batch from there on; 0: as the course has them. Throws
  // Error when no whole batch is left there.
  void seek(std::int64_t epoch, std::int64_t offset, std::int64_t batch = 0);
  // With on_request: the next global batch to be read is the one after these samples of the epoch. Batches are read in
  // the order of the requests.
  void request(std::int64_t epoch, std::int64_t offset);
  void forget_requests();  // and throws away what was read of them
  // The next micro-batch, in order, across epochs; valid until the next call. Throws what a loader thread threw. An
  // Error in what was read ahead and is thrown away, by seek() or at the end, is a warning.
  const MicroBatch& next();
  // The memory of all micro-batches, for devices that copy from it.
  std::vector<std::span<const std::byte>> ring() const;
  double waited_seconds() const;  // total time next() has waited
  // Exactly the ring; for images also what their records take at most while they wait for decoding.
  static std::int64_t memory_bytes(const DatasetIndex& index, const LoaderPlan& plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
