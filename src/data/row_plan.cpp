#include "data/row_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/rounding.h"
#include "data/image_dataset.h"

namespace ringtrain {
namespace {

// With this many rounds, small counts look random too. Each round costs one Philox call (about 10 ns).
constexpr std::uint64_t rounds = 6;

}  // namespace

EpochOrder::EpochOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t count) : count_(count) {
  if (count < 1) throw Error(cat("cannot order ", count, " samples, expected at least 1"));
  const Random4 r = philox(random_key(seed, RandomPurpose::order), static_cast<std::uint64_t>(epoch), 0);
  key_ = (std::uint64_t{r.v[0]} << 32) | r.v[1];
  while (half_bits_ < 31 && (std::int64_t{1} << (2 * half_bits_)) < count) ++half_bits_;
}

std::int64_t EpochOrder::operator()(std::int64_t position) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {  // at most four repetitions on average: the network permutes 4^half_bits values, which are at most 4 x count
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = left ^ (philox(key_, right, round).v[0] & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

std::int64_t used_of(const DatasetIndex& index, const LoaderPlan& plan) {
  if (plan.evaluation || plan.share >= 1) return index.total;
  return std::max<std::int64_t>(1, std::llround(plan.share * static_cast<double>(index.total)));
}

std::int64_t first_used(std::uint64_t seed, std::int64_t total, std::int64_t used) {
  const double place = random_uniform(random_key(seed, RandomPurpose::share), 0);
  return static_cast<std::int64_t>(place * static_cast<double>(total - used));
}

std::int64_t used_record(std::uint64_t seed, std::int64_t total, std::int64_t position) {
  return EpochOrder(random_key(seed, RandomPurpose::share), 0, total)(position);
}

std::vector<std::uint32_t> used_images(std::uint64_t seed, std::span<const std::int32_t> labels, std::int64_t used) {
  const std::uint64_t key = random_key(seed, RandomPurpose::share);
  std::vector<std::int64_t> sizes;
  for (const std::int32_t label : labels) {
    if (label >= std::ssize(sizes)) sizes.resize(static_cast<std::size_t>(label) + 1);
    ++sizes[static_cast<std::size_t>(label)];
  }
  struct Class {
    EpochOrder order;
    double begin = 0, size = 0;
    std::int64_t next = 0;
  };
  std::vector<Class> classes;
  for (std::size_t c = 0; c < sizes.size(); ++c)
    classes.push_back({EpochOrder(key, static_cast<std::int64_t>(c), std::max<std::int64_t>(1, sizes[c])),
                       random_uniform(key, c), static_cast<double>(sizes[c])});
  std::vector<std::pair<double, std::uint32_t>> places;
  places.reserve(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    Class& its = classes[static_cast<std::size_t>(labels[i])];
    const auto place = static_cast<double>(its.order(its.next++));
    places.emplace_back((place + its.begin) / its.size, static_cast<std::uint32_t>(i));
  }
  std::ranges::nth_element(places, places.begin() + used);
  std::vector<std::uint32_t> kept(static_cast<std::size_t>(used));
  std::ranges::transform(std::span(places).first(kept.size()), kept.begin(),
                         [](const auto& one) { return one.second; });
  std::ranges::sort(kept);
  return kept;
}

void choose_images(const Dataset& dataset, LoaderPlan& plan) {
  const DatasetIndex& index = dataset.index();
  const auto* images = dynamic_cast<const ImageDataset*>(&dataset);
  if (images == nullptr || plan.used_images || used_of(index, plan) == index.total) return;
  if (index.total > std::numeric_limits<std::uint32_t>::max())
    throw Error(cat("data.share is ", plan.share, ", but ", index.prefix, " has ", index.total,
                    " images, more than 32 bits can count"),
                "train with data.share=1, or convert fewer images");
  std::vector<std::int32_t> labels(static_cast<std::size_t>(index.total));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = images->record(static_cast<std::int64_t>(i)).label;
  plan.used_images =
      std::make_shared<const std::vector<std::uint32_t>>(used_images(plan.seed, labels, used_of(index, plan)));
}

namespace {

// Returns the number of characters that each of the B streams reads.
std::int64_t stream_piece(std::int64_t characters, const LoaderPlan& plan) {
  const std::int64_t targets = characters - 1;
  return plan.evaluation ? divide_up(targets, plan.global_batch) : targets / plan.global_batch;
}

// Returns a random number in [0, length) for each epoch, so that windows begin at all places over the epochs.
std::int64_t window_phase(const LoaderPlan& plan, std::int64_t epoch) {
  const double u = random_uniform(random_key(plan.seed, RandomPurpose::phase), static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(u * static_cast<double>(plan.sequence));
}

// Throws Error that says which keys can make the epoch long enough for one step.
[[noreturn]] void throw_too_little(const DatasetIndex& index, const LoaderPlan& plan, std::int64_t samples) {
  if (!index.text.running_text) {
    throw Error(
        cat(index.prefix, ": an epoch has only ", samples, " samples, but the global batch is ", plan.global_batch),
        "use a smaller batch.global, or more data");
  }
  const bool streams = plan.order == TextOrder::streams;
  // A step needs B streams of L targets, or B windows of L characters and as many that the random phase may skip.
  const std::int64_t used = used_of(index, plan);
  const std::int64_t batch = streams ? (used - 1) / plan.sequence : used / plan.sequence - 1;
  const std::int64_t sequence = streams ? (used - 1) / plan.global_batch : used / (plan.global_batch + 1);
  std::string hint;
  if (sequence >= 1) hint += cat("use a data.sequence of at most ", sequence, ", ");
  if (batch >= 1) hint += cat(hint.empty() ? "use " : "", "a batch.global of at most ", batch, ", ");
  throw Error(cat(index.prefix, ": has ", used, " characters", used < index.total ? " in the data.share" : "",
                  ", too few for one step of batch.global ", plan.global_batch, streams ? " streams" : " windows",
                  " and data.sequence ", plan.sequence),
              cat(hint, hint.empty() ? "use more text" : "or more text"));
}

// Throws Error if the plan contradicts itself or the data set.
void check_loader_plan(const DatasetIndex& index, const LoaderPlan& plan) {
  const bool rows = plan.order == TextOrder::rows;
  if (index.is_image() && (!rows || plan.sequence != 1 || plan.image.size < 1 || plan.reads < 1)) {
    throw Error(cat("impossible loader plan: ", index.prefix, " holds images, which are read as rows of sequence 1, ",
                    "but the plan asks for ", rows ? "rows" : "windows or streams", " of sequence ", plan.sequence,
                    ", size ", plan.image.size, ", reads ", plan.reads));
  }
  if (rows == index.text.running_text) {
    throw Error(cat(index.prefix, " holds ", index.text.running_text ? "running text" : "names",
                    ", which cannot be read as ", rows ? "rows" : "windows or streams"),
                index.text.running_text ? "choose the order windows or streams" : "choose the order rows");
  }
  if (rows && !index.is_image() && plan.sequence != index.text.context_length) {
    throw Error(cat("the sequence length is ", plan.sequence, ", but the names in ", index.prefix,
                    " have a context of ", index.text.context_length),
                "use the data set's context length, or convert the names again with --context");
  }
  if (plan.sequence < 1 || plan.global_batch < 1 || plan.rows < 1 || plan.first_row < 0 ||
      plan.first_row + plan.span * plan.rows > plan.global_batch || plan.micro_batch < 1 ||
      plan.rows % plan.micro_batch != 0 || plan.span < 1 || plan.member < 0 || plan.member >= plan.span ||
      plan.threads < 1 || plan.prefetch < 1) {
    throw Error(cat("impossible loader plan: sequence ", plan.sequence, ", global batch ", plan.global_batch,
                    ", rows [", plan.first_row, ", ", plan.first_row + plan.rows, "), micro-batch ", plan.micro_batch,
                    ", threads ", plan.threads, ", prefetch ", plan.prefetch));
  }
  for (const BatchStage& stage : plan.course.stages) {
    const RowRange own = rows_of_rank(plan, stage.batch);
    if (own.first * plan.global_batch != plan.first_row * stage.batch ||
        own.count * plan.global_batch != plan.rows * stage.batch || own.count % plan.micro_batch != 0 ||
        (plan.order == TextOrder::streams && stage.batch != plan.global_batch))
      throw Error(cat("impossible loader plan: the batch ", stage.batch,
                      " of the course does not fit the global batch ", plan.global_batch, ", rows [", plan.first_row,
                      ", ", plan.first_row + plan.rows, "), micro-batch ", plan.micro_batch));
  }
  if (index.text.running_text && used_of(index, plan) < 2) {
    throw Error(cat(index.prefix, " has ", used_of(index, plan), " character(s), which leaves nothing to predict"));
  }
}

}  // namespace

std::int64_t samples_per_epoch(const DatasetIndex& index, const LoaderPlan& plan) {
  const std::int64_t used = used_of(index, plan);
  switch (plan.order) {
    case TextOrder::rows:
      return used;
    case TextOrder::windows:
      if (plan.evaluation) return divide_up(used - 1, plan.sequence);
      return std::max<std::int64_t>(0, (used - plan.sequence) / plan.sequence);
    case TextOrder::streams:
      break;
  }
  const std::int64_t piece = stream_piece(used, plan);
  return plan.global_batch * (plan.evaluation ? divide_up(piece, plan.sequence) : piece / plan.sequence);
}

std::int64_t steps_per_epoch(const DatasetIndex& index, const LoaderPlan& plan) {
  check_loader_plan(index, plan);
  const std::int64_t samples = samples_per_epoch(index, plan);
  if (plan.evaluation) return divide_up(samples, plan.global_batch);
  if (samples < plan.global_batch) throw_too_little(index, plan, samples);
  return plan.course.keeps_rest ? divide_up(samples, plan.global_batch) : samples / plan.global_batch;
}

std::int64_t targets_not_read(const DatasetIndex& index, const LoaderPlan& plan) {
  if (plan.order == TextOrder::rows) return 0;
  return used_of(index, plan) - 1 -
         samples_per_epoch(index, plan) / plan.global_batch * plan.global_batch * plan.sequence;
}

StepRows::StepRows(const DatasetIndex& index, const LoaderPlan& plan, std::int64_t epoch, std::int64_t offset)
    : plan_(plan),
      offset_(offset),
      total_(index.total),
      characters_(used_of(index, plan)),
      samples_(samples_per_epoch(index, plan)),
      is_image_(index.is_image()),
      order_(plan.seed, epoch, std::max<std::int64_t>(1, samples_)) {
  if (plan.order == TextOrder::windows && !plan.evaluation) phase_ = window_phase(plan, epoch);
  if (characters_ == total_) return;
  if (plan.order != TextOrder::rows) first_character_ = first_used(plan.seed, total_, characters_);
  if (is_image_ && !plan.used_images)
    throw Error("a plan of a share of the images lacks its samples (choose_images())");
}

// Returns the record at a position of the natural order of the records that are used.
std::int64_t StepRows::record_at(std::int64_t position) const {
  if (characters_ == total_) return position;
  if (is_image_) return (*plan_.used_images)[static_cast<std::size_t>(position)];
  return used_record(plan_.seed, total_, position);
}

StepRows::Row StepRows::operator()(std::int64_t global_row) const {
  const std::int64_t length = plan_.sequence;
  if (plan_.order == TextOrder::streams) {
    const std::int64_t targets = characters_ - 1;
    const std::int64_t piece = stream_piece(characters_, plan_);
    const std::int64_t begin = global_row * piece + offset_ / plan_.global_batch * length;
    const std::int64_t end = std::min({(global_row + 1) * piece, targets, begin + length});
    return {first_character_ + begin, std::max<std::int64_t>(0, end - begin)};
  }
  const std::int64_t position = offset_ + global_row;
  if (position >= samples_ && is_image_ && !plan_.evaluation)
    return {record_at(order_(position - samples_)), length, false};
  if (position >= samples_) return {};
  const std::int64_t sample = plan_.evaluation ? position : order_(position);
  if (plan_.order == TextOrder::rows) return {record_at(sample), length};
  const std::int64_t begin = phase_ + sample * length;
  return {first_character_ + begin, std::min(length, characters_ - 1 - begin)};
}

}  // namespace ringtrain
