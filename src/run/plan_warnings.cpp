// The warnings of a plan: plan_warnings() of plan_text.h.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "config/rate_scaling.h"
#include "data/hdf5.h"
#include "data/row_plan.h"
#include "optim/schedule.h"
#include "run/course.h"
#include "run/memory.h"
#include "run/passes.h"
#include "run/plan_text.h"

namespace ringtrain {
namespace {

constexpr double bold_scaling = 8;

// Returns the nearest existing folder at or above the run's folder.
std::filesystem::path existing_folder(const RunPlan& plan) {
  const std::string& dir = plan.experiment.run.dir;
  std::filesystem::path path = std::filesystem::absolute(dir.empty() ? "results" : dir);
  std::error_code failed;
  while (path.has_relative_path() && !std::filesystem::exists(path, failed)) path = path.parent_path();
  return path;
}

void warn_of_warm_up(const RunPlan& plan, std::vector<std::string>& warnings) {
  const LearningRateConfig& lr = plan.experiment.learning_rate;
  const ScheduleContext& schedule = rate_schedule(plan);
  const std::int64_t steps = warmup_steps(lr, schedule);
  const double k = batch_ratio(lr, plan.schedule.global_batch);
  if (steps > 0 && !has_step(plan, peak_step(lr, schedule)))
    warnings.push_back(cat("the warm-up ends at epoch ", with_digits(schedule.epochs_of(steps)),
                           " and the run ends at epoch ", with_digits(end_epoch(plan)),
                           ": the learning rate never reaches its peak; shorten learning_rate.",
                           lr.warmup_steps > 0 ? "warmup_steps" : "warmup_epochs", " or lengthen the run"));
  if (steps > 0 && lr.warmup_from == "base" && k == 1)
    warnings.push_back(
        cat("the warm-up changes nothing: batch.global is learning_rate.base_batch (", lr.base_batch,
            "), so it begins and ends at learning_rate.base; learning_rate.warmup_from=zero begins at 0"));
  // The transition from RMSprop is a warm-up too (Akiba et al. 2017), and so are points that begin with a low factor.
  const bool starts_low =
      plan.experiment.optimizer.kind == "rmsprop_to_sgd" || learning_rate(lr, schedule, 0) < bold_scaling * lr.base;
  if (steps == 0 && lr.scaling == "linear" && k >= bold_scaling && !starts_low)
    warnings.push_back(
        cat("the learning rate is scaled linearly, ", k,
            " times, without warm-up: training is likely to "
            "diverge in its first steps (Goyal et al. 2017); learning_rate.warmup_epochs=5 is their choice"));
}

// With learning_rate.every: epoch, a milestone inside an epoch counts from the next epoch on.
void warn_of_milestones(const RunPlan& plan, std::vector<std::string>& warnings) {
  const LearningRateConfig& lr = plan.experiment.learning_rate;
  if (lr.every != "epoch" || lr.schedule != "step") return;
  const ScheduleContext& schedule = rate_schedule(plan);
  for (const double milestone : lr.milestones) {
    const std::int64_t step = milestone_step(lr, schedule, milestone);
    const double epoch = schedule.epochs_of(step);
    if (epoch - milestone < 0.5 / static_cast<double>(schedule.steps_per_epoch) + 1e-9) continue;
    warnings.push_back(cat("learning_rate.milestones has ", with_digits(milestone),
                           " and learning_rate.every is epoch: the rate changes at epoch ", with_digits(epoch),
                           has_step(plan, step) ? "" : ", which is after the end of the run",
                           "; give whole epochs, or learning_rate.every=step"));
  }
}

void warn_of_averages(const RunPlan& plan, std::vector<std::string>& warnings) {
  const AverageConfig& average = plan.experiment.average;
  const double end = end_epoch(plan);
  if (average.half_life > 0 && end > 0 && average.from_epoch >= end)
    warnings.push_back(cat("average.from_epoch is ", with_digits(average.from_epoch), " and the run ends at epoch ",
                           with_digits(end),
                           ": the average of the weights never begins; give an earlier epoch, or lengthen the run"));
}

void warn_of_decay(const RunPlan& plan, std::vector<std::string>& warnings) {
  if (!decouples_decay(plan.experiment.optimizer)) return;
  double most = 0;
  for (const BatchStage& stage : batch_stages(plan)) most = std::max(most, peak_decay(plan, stage));
  if (most >= 1)
    warnings.push_back(cat("rate x weight decay is ", with_digits(most),
                           " at the peak rate: a step takes away the whole weights or more, so they cannot learn; "
                           "optimizer.weight_decay or learning_rate.base must be lower"));
}

bool is_much_enlarged(const ImageFormat& pictures, std::int64_t side) {
  return pictures.raw && std::min(pictures.height, pictures.width) >= 1 &&
         2 * std::max(pictures.height, pictures.width) < side;
}

// Enlarging training pictures makes each step longer and adds nothing to see. If only the validation pictures are
// enlarged, they do not look like training pictures.
void warn_of_small_pictures(const RunPlan& plan, std::vector<std::string>& warnings) {
  const ImageFormat& pictures = plan.train.image;
  const std::int64_t side = plan.experiment.data.image_size, short_side = std::min(pictures.height, pictures.width);
  if (!plan.train.is_image()) return;
  if (!is_much_enlarged(pictures, side)) {
    if (plan.has_validation && is_much_enlarged(plan.validation.image, side))
      warnings.push_back(cat("the pictures of ", plan.validation.prefix, " have ", plan.validation.image.height, " x ",
                             plan.validation.image.width, " pixels, and data.image_size is ", side,
                             ": only they are enlarged, so they are more blurred than training pictures; make the "
                             "validation set from pictures of the training set's size"));
    return;
  }
  constexpr std::int64_t smallest_size = 8;  // of data.image_size
  const std::int64_t own = std::max(short_side, smallest_size);
  warnings.push_back(cat("the pictures of ", plan.train.prefix, " have ", pictures.height, " x ", pictures.width,
                         " pixels, and data.image_size is ", side,
                         ": they are enlarged, which only takes time; data.image_size=", own, " and data.resize=", own,
                         " keep their size"));
}

// A validation loss of training samples says nothing about new ones.
void warn_of_splits(const RunPlan& plan, std::vector<std::string>& warnings) {
  if (plan.train.split == "validation")
    warnings.push_back(cat("data.train is ", plan.train.prefix, ", which is a validation split"));
  if (plan.has_validation && plan.validation.split == "train")
    warnings.push_back(cat("data.validation is ", plan.validation.prefix,
                           ", which is a training split: the validation loss may be that of samples that the model "
                           "has learned"));
}

// The default of data.resize, 256, is for a model of 224 pixels. It leaves a model of few pixels a few percent.
void warn_of_small_part(const RunPlan& plan, std::vector<std::string>& warnings) {
  const DataConfig& data = plan.experiment.data;
  const bool crops_training = data.augmentation != "random_resized_crop";
  if (!plan.train.is_image() || 2 * data.image_size >= data.resize || (!plan.has_validation && !crops_training)) return;
  const double share = static_cast<double>(data.image_size) / static_cast<double>(data.resize);
  warnings.push_back(cat(!plan.has_validation ? "training sees"
                         : crops_training     ? "training and evaluation see"
                                              : "evaluation sees",
                         " only the central ", data.image_size, " x ", data.image_size,
                         " of pictures whose short side becomes ", data.resize, ": ",
                         with_digits(100 * share * share, 2), " % of a square picture; data.resize=", data.image_size,
                         " shows them whole"));
}

bool is_after_end(const RunPoint& point, const RunPlan& plan) {
  const std::optional<Position> position = position_of(point, plan);
  return position && plan.updates > 0 && position->step > std::max(plan.updates, plan.branch.position.step);
}

void warn_of_kept_points(const RunPlan& plan, std::vector<std::string>& warnings) {
  std::vector<std::string> after;
  for (const RunPoint& point : plan.experiment.checkpoint.keep_at)
    if (is_after_end(point, plan)) after.push_back(with_unit(point));
  if (!after.empty())
    warnings.push_back(cat("checkpoint.keep_at has ", first_names(after), ", and the run ends at step ",
                           with_thousands(plan.updates), " (epoch ", with_digits(end_epoch(plan)),
                           "): no such checkpoint will be written; numbers without a unit are epochs"));
}

void warn_of_room(const RunPlan& plan, std::vector<std::string>& warnings) {
  const CheckpointConfig& checkpoint = plan.experiment.checkpoint;
  const double bytes = static_cast<double>(checkpoint_bytes(plan));
  // A new checkpoint is written before an old one is deleted. The best checkpoint and those of checkpoint.keep_at may
  // be older than the last `keep` ones.
  const std::int64_t kept =
      std::ranges::count_if(checkpoint.keep_at, [&](const RunPoint& point) { return !is_after_end(point, plan); });
  const bool keeps_best = checkpoint.best && plan.has_validation;
  const std::int64_t most = checkpoint.keep + 1 + kept + (keeps_best ? 1 : 0);
  const std::filesystem::path folder = existing_folder(plan);
  std::error_code failed;
  const std::filesystem::space_info room = std::filesystem::space(folder, failed);
  const double needed = static_cast<double>(most) * bytes;
  if (failed || needed <= static_cast<double>(room.available)) return;
  warnings.push_back(
      cat("up to ", most, most == 1 ? " checkpoint of " : " checkpoints of ", readable_bytes(bytes),
          " do not fit the disk of ", folder.string(), ", where ", readable_bytes(static_cast<double>(room.available)),
          " are free; free some space, or set run.dir to another disk",
          checkpoint.keep > 1 ? ", or checkpoint.keep lower" : "", keeps_best ? ", or checkpoint.best=false" : "",
          kept > 0 ? ", or give fewer points in checkpoint.keep_at" : "",
          checkpoint.keep == 1 ? " (an old checkpoint is deleted only when the new one is whole, so there must "
                                 "be room for two)"
                               : ""));
}

// Returns the labels of a data set on this machine. Empty: it holds no images, its size was only stated, or its labels
// cannot be read or are no classes. Training then reports the fault itself.
std::vector<std::int32_t> labels_of(const DatasetIndex& index) try {
  std::vector<std::int32_t> labels;
  if (!index.is_image() || index.shards.empty() || index.shards.front().path.empty()) return labels;
  for (const DatasetIndex::Shard& shard : index.shards)
    std::ranges::copy(h5::File::open(shard.path).read<std::int32_t>("labels"), std::back_inserter(labels));
  const auto classes = static_cast<std::int32_t>(index.image.class_ids.size());
  const auto is_class = [&](std::int32_t label) { return label >= 0 && label < classes; };
  return std::ranges::all_of(labels, is_class) ? labels : std::vector<std::int32_t>{};
} catch (const Error&) {
  return {};
}

std::vector<std::int64_t> images_per_class(const DatasetIndex& index, const std::vector<std::int32_t>& labels) {
  std::vector<std::int64_t> images(labels.empty() ? 0 : index.image.class_ids.size());
  for (const std::int32_t label : labels) ++images[static_cast<std::size_t>(label)];
  return images;
}

std::string name_of(const ImageFormat& image, std::size_t k) {
  return image.class_names[k] == image.class_ids[k] ? cat("'", image.class_ids[k], "'")
                                                    : cat("'", image.class_ids[k], "' (", image.class_names[k], ")");
}

// Returns "3 of 10 classes: 'a', 'b', 'c'".
std::string named(const ImageFormat& image, const std::vector<std::size_t>& classes) {
  std::vector<std::string> names;
  for (const std::size_t k : classes) names.push_back(name_of(image, k));
  return cat(classes.size(), " of ", image.class_ids.size(), " classes: ", first_names(names));
}

// Warns of classes without training images. Labels that count from 1, for example, make one class too many.
void warn_of_classes(const RunPlan& plan, std::vector<std::string>& warnings) {
  const DatasetIndex& train = plan.train;
  const std::vector<std::int32_t> labels = labels_of(train);
  if (labels.empty()) return;
  std::vector<std::int32_t> used = labels;
  const std::int64_t count = used_of(train, plan.train_loader);
  if (count < std::ssize(labels) && std::ssize(labels) <= std::numeric_limits<std::uint32_t>::max()) {
    used.clear();
    for (const std::uint32_t i : used_images(plan.train_loader.seed, labels, count)) used.push_back(labels[i]);
  }
  const std::vector<std::int64_t> images = images_per_class(train, labels), in_share = images_per_class(train, used),
                                  validation = plan.has_validation
                                                   ? images_per_class(plan.validation, labels_of(plan.validation))
                                                   : std::vector<std::int64_t>{};
  std::vector<std::size_t> empty, left_out, unknown;
  for (std::size_t k = 0; k < images.size(); ++k) {
    if (in_share[k] > 0) continue;
    (images[k] == 0 ? empty : left_out).push_back(k);
    if (k < validation.size() && validation[k] > 0) unknown.push_back(k);
  }
  if (empty.size() == 1 && empty.front() == 0 && images.size() > 2)
    warnings.push_back(
        cat("class 0 (", name_of(train.image, 0), ") has no pictures in ", train.prefix,
            ": do the labels count from 1? They must count from 0. Subtract 1 from them and convert again, "
            "or the model has a class too many"));
  else if (!empty.empty())
    warnings.push_back(cat(train.prefix, " has no pictures of ", named(train.image, empty),
                           "; the model has these classes, but cannot learn them"));
  if (!left_out.empty())
    warnings.push_back(cat("data.share ", with_digits(plan.experiment.data.share), " leaves no pictures of ",
                           named(train.image, left_out), "; the model cannot learn them. Use a larger share"));
  if (!unknown.empty())
    warnings.push_back(cat("validation pictures of ", named(train.image, unknown),
                           " are of classes that have no training pictures: they cannot be predicted right"));
}

}  // namespace

std::vector<std::string> plan_warnings(const RunPlan& plan) {
  std::vector<std::string> warnings;
  warn_of_warm_up(plan, warnings);
  warn_of_milestones(plan, warnings);
  warn_of_averages(plan, warnings);
  warn_of_decay(plan, warnings);
  warn_of_kept_points(plan, warnings);
  warn_of_room(plan, warnings);
  warn_of_small_pictures(plan, warnings);
  warn_of_splits(plan, warnings);
  warn_of_small_part(plan, warnings);
  if (const std::string norm = small_norm(plan); !norm.empty()) warnings.push_back(norm);
  warn_of_classes(plan, warnings);
  return warnings;
}

}  // namespace ringtrain
