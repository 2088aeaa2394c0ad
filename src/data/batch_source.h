// The source of the loader's micro-batches, with one implementation per kind of data.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/loader.h"

namespace ringtrain {

// The part of a micro-batch that one thread fills: all of it for text, one row for images.
struct BatchPart {
  std::int64_t epoch = 0, offset = 0, micro_step = 0;  // as in MicroBatch
  std::int64_t batch = 0;                              // number of rows of the global batch
  std::int64_t part = 0;                               // number of this part, in [0, parts)
  std::int64_t first_row = 0;                          // first row of the micro-batch in the global batch
};

// A slot of the ring. The parts of one micro-batch are filled at the same time, each by its own thread.
struct BatchSpace {
  MicroBatch* batch = nullptr;  // part 0 sets step_targets, valid_rows and resets_state
  std::span<std::uint8_t> inputs;
  std::span<std::int32_t> targets;
};

// Fills parts. Each thread has its own filler, which keeps its scratch memory. Throws Error with file and record.
class BatchFiller {
 public:
  virtual ~BatchFiller() = default;
  virtual void fill(const BatchPart& part, std::span<const std::uint8_t> record, const BatchSpace& space) = 0;
};

// All functions may be called from several threads at the same time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual std::unique_ptr<BatchFiller> make_filler() = 0;
  // record_bytes() returns the bytes of the record from which a part is filled. 0: the part has no record. read() reads
  // this record. Both functions may wait for a file server.
  virtual std::int64_t record_bytes(const BatchPart& part) const = 0;
  virtual void read(const BatchPart& part, std::vector<std::uint8_t>& record) const = 0;
};

struct RingSizes {
  std::int64_t slots = 0;    // number of micro-batches: `prefetch`, and the one that the trainer holds
  std::int64_t inputs = 0;   // bytes of a slot
  std::int64_t targets = 0;  // targets of a slot
  std::int64_t parts = 1;    // parts of a micro-batch
  std::int64_t readers =
      0;  // number of threads that read records; other threads turn these into parts. 0: parts have no records
  // Memory for records that are read but not yet used:
  std::int64_t buffers = 0;         // number of buffers that are reused
  std::int64_t buffer_bytes = 0;    // size of a buffer
  std::int64_t oversize_bytes = 0;  // limit for all records together that are larger than a buffer

  std::int64_t memory_bytes() const {
    return slots * (inputs + targets * static_cast<std::int64_t>(sizeof(std::int32_t))) + buffers * buffer_bytes +
           oversize_bytes;
  }
};

RingSizes ring_sizes(const DatasetIndex& index, const LoaderPlan& plan);
// Makes the source for the data set's kind of data. Throws Error for an unknown kind.
std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan);

}  // namespace ringtrain
