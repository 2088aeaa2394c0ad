// Prepares micro-batches in background threads. A ring of them is kept ready for the trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/batch_course.h"
#include "data/dataset.h"
#include "data/image_transform.h"

namespace ringtrain {

// A target that does not count in the loss. It is used for padding rows, for masked blanks and at the end of the data.
inline constexpr std::int32_t ignored_target = -1;

enum class TextOrder {
  rows,
  windows,
  streams
};  // rows of names | shuffled windows of text | streams of text with carried state

struct LoaderPlan {
  std::uint64_t seed = 0;
  TextOrder order = TextOrder::rows;  // images: rows
  std::int64_t sequence = 0;          // symbols per sample (L); for rows the data set's context_length; images: 1
  bool mask_blanks = false;           // pad_id targets become ignored_target
  ImageTransform image;               // images only
  bool has_pixels = true;             // images only; false: only labels are read
  std::int64_t reads = 8;             // images only: number of records that are read at the same time
  std::int64_t global_batch = 0;
  // This rank's rows of every global batch are [first_row, first_row + rows). If `span` ranks share the workers of
  // batch norm, they share the span x rows rows that begin at first_row. This rank has micro-batches member, member +
  // span, member + 2 span, ... of these rows.
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t micro_batch = 0;  // divides rows
  std::int64_t span = 1, member = 0;
  BatchCourse course;  // for training; an empty course means global_batch for the whole run
  // Training: the part of the data set that is used (data.share), and for images the samples of it (row_plan.h). The
  // Loader finds the samples if they are null.
  double share = 1;
  std::shared_ptr<const std::vector<std::uint32_t>> used_images = nullptr;
  bool evaluation = false;   // natural order; every sample or character exactly once; the last batch is padded
  std::int64_t threads = 1;  // threads that fill batches, or decode images
  std::int64_t prefetch = 4;
  bool on_request = false;  // training: reads only the global batches that Loader::request() names
};

// The input of one pass of one rank.
struct MicroBatch {
  std::int64_t epoch = 0;         // evaluation: 0
  std::int64_t offset = 0;        // number of samples of the epoch before this global batch
  std::int64_t micro_step = 0;    // within the step
  std::int64_t first_row = 0;     // place of row 0 in the global batch; the key of dropout and of carried state
  std::int64_t step_targets = 0;  // counted targets of this rank's share of the step
  std::int64_t valid_rows = 0;    // rows with a counted target, which come first; fewer only at the end of the data
  bool resets_state = false;      // streams: the carried state starts from zero at this step
  std::span<const std::uint8_t> inputs;  // [micro_batch, sequence]; images: [micro_batch, size, size, 3]
  // [micro_batch, sequence]; ignored_target: does not count. Empty: the pass takes the input of an earlier pass again
  // (Program::stage_again()), which only benchmarks do.
  std::span<const std::int32_t> targets;
};

class BatchSource;

// What gives a trainer its micro-batches. The functions are those of Loader.
class BatchInput {
 public:
  virtual ~BatchInput() = default;
  virtual void seek(std::int64_t epoch, std::int64_t offset, std::int64_t batch) = 0;
  virtual const MicroBatch& next() = 0;
  virtual std::vector<std::span<const std::byte>> ring() const = 0;
};

class Loader : public BatchInput {
 public:
  // `source` fills the micro-batches. If it is null, the data set does, as the plan says.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan, std::unique_ptr<BatchSource> source);
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan);
  ~Loader() override;  // ends the threads
  // Starts, or starts again, with the global batch after the first `offset` samples of this epoch (evaluation: epoch
  // 0). Batches that were prepared before are discarded, unless the loader is at this place already. `batch` is the
  // size of every global batch from there on. 0: the sizes stay those of the course, or of an earlier seek with a
  // batch. Throws Error if the epoch has no batch there.
  void seek(std::int64_t epoch, std::int64_t offset, std::int64_t batch = 0) override;
  // With on_request: asks for the global batch after the first `offset` samples of the epoch. Batches are read in the
  // order of the requests.
  void request(std::int64_t epoch, std::int64_t offset);
  void forget_requests();  // also discards what was read for them
  // Returns the next micro-batch, in order and across epochs. It is valid until the next call. Throws the error of a
  // loader thread. If the batch with the error is discarded, by seek() or at the end, the error becomes a warning.
  const MicroBatch& next() override;
  // Returns the memory of all micro-batches, for devices that copy from it.
  std::vector<std::span<const std::byte>> ring() const override;
  // Returns the bytes of the ring. For images it adds the largest size of records that wait for decoding.
  static std::int64_t memory_bytes(const DatasetIndex& index, const LoaderPlan& plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
