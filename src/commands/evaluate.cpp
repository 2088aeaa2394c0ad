// `ringtrain evaluate` makes one pass over a validation set.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/resume.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/weights_file.h"
#include "cluster/watchdog.h"
#include "commands/commands.h"
#include "config/reader.h"
#include "data/shard_files.h"
#include "run/folder.h"
#include "run/machine.h"
#include "run/metrics.h"
#include "run/start.h"
#include "train/evaluation.h"

namespace ringtrain {
namespace {

OutputKind result_file() {
  return json_output("result of ringtrain evaluate --json", {"weights", "validation_dataset", "validation_uuid"});
}

OutputKind logits_file() {
  return safetensors_output("result of ringtrain evaluate --logits", [](const SafetensorsFile& file) {
    return std::ranges::count(file.entries(), "logits", &SafetensorsEntry::name) > 0;
  });
}

// What rank 0 has found: the source of the weights, and the experiment with which they are evaluated.
struct Source {
  std::string path;  // path of the weights
  std::unique_ptr<Checkpoint> checkpoint;
  Experiment experiment;
  std::int64_t step = 0, micro_batch = 0;
};

// A data set that is made again divides its samples anew. Samples that the run was trained on may then be evaluated.
void warn_of_changed_data(const Source& source, const DatasetIndex& train) {
  if (!source.checkpoint) return;
  const Checkpoint& checkpoint = *source.checkpoint;
  const DataConfig before = experiment_of(checkpoint, source.path).data;
  const DataConfig& now = source.experiment.data;
  const std::string uuid = checkpoint.text("train_uuid");
  if (now.train != before.train || now.validation != before.validation || uuid == train.dataset_uuid) return;
  log_warning(train.prefix, " has changed since this run was made (uuid ", uuid, ", now ", train.dataset_uuid,
              "): the validation samples may have been training samples");
}

// An evaluation needs the classes (or symbols) of the training set, and its mean and deviation if neither the
// experiment nor the weights state them. Users often have the weights without the training set. The validation set then
// gives these values.
void use_validation_set_alone(DataConfig& data) {
  try {
    find_shards(data.train);
  } catch (const Error& error) {
    log_warning(error.what(), "; the classes", data.mean.empty() ? ", mean and deviation" : "", " are taken from ",
                data.validation);
    data.train = data.validation;
  }
}

Source find_source(const EvaluateArguments& arguments) {
  const ExperimentArguments& named = arguments.experiment;
  const bool from_file = is_experiment_file(named.path);
  Source s;
  if (from_file) s.experiment = read_experiment(named.path, named.overrides);
  if (!from_file || arguments.weights.empty()) {
    FoundCheckpoint found = find_weights(named.path, from_file ? named.overrides : std::vector<std::string>{});
    s.path = std::move(found.path);
    s.checkpoint = std::make_unique<Checkpoint>(std::move(found.checkpoint));
    s.step = s.checkpoint->step;
    s.micro_batch = facts_of(*s.checkpoint).micro_batch;
    if (!from_file) s.experiment = parse_experiment(s.checkpoint->text("experiment"), s.path, named.overrides);
  }
  if (arguments.weights.empty()) expect_evaluated_norms(*s.checkpoint, s.path);
  if (!arguments.weights.empty()) {
    s.checkpoint.reset();
    s.path = arguments.weights;
    s.step = 0;
  }
  if (s.experiment.data.validation.empty())
    throw Error(cat(named.path, ": names no validation set"), "say which: data.validation=PREFIX");
  if (s.checkpoint) use_image_input_of(*s.checkpoint, s.experiment.data);
  if (!s.checkpoint) use_image_input_of(SafetensorsFile(s.path), s.experiment.data);
  use_validation_set_alone(s.experiment.data);
  return s;
}

// The first samples of the validation set, with the model's inputs and logits.
class Samples {
 public:
  Samples(const RunPlan& plan, std::int64_t count) : plan_(plan), count_(count) {}

  void add(const MicroBatch& batch, const Program& program) {
    const std::int64_t bytes = plan_.graph.input_bytes(), sequence = plan_.graph.sequence();
    for (std::int64_t row = 0; row < batch.valid_rows && samples_ < count_; ++row, ++samples_) {
      const auto input = batch.inputs.begin() + row * bytes;
      inputs_.insert(inputs_.end(), input, input + bytes);
      const auto target = batch.targets.begin() + row * sequence;
      targets_.insert(targets_.end(), target, target + sequence);
      for (std::int64_t position = 0; position < sequence; ++position) {
        const std::vector<float> logits = program.logits(row, position);
        logits_.insert(logits_.end(), logits.begin(), logits.end());
      }
    }
  }

  // Writes inputs U8 [n, sequence] or [n, height, width, channels], targets I64 [n, sequence] and logits F32 [n,
  // sequence, classes]. Images have no sequence. Their metadata has mean and std per channel, model.stride_in, and
  // model.norm_groups of group norm.
  void write(const std::string& path) const {
    std::map<std::string, std::string> metadata = {{"model", plan_.experiment.model.kind}};
    std::vector<std::int64_t> inputs = {samples_}, targets = {samples_};
    if (const auto* image = std::get_if<ImageInput>(&plan_.graph.nodes().front().operation)) {
      inputs.insert(inputs.end(), {image->height, image->width, image->channels});
      metadata["stride_in"] = plan_.experiment.model.stride_in;
      if (normalization(plan_.experiment.model) == "group")
        metadata["norm_groups"] = std::to_string(plan_.experiment.model.norm_groups);
      metadata["mean"] = Json(image->mean).dump();
      metadata["std"] = Json(image->std).dump();
    } else {
      inputs.push_back(plan_.graph.sequence());
      targets.push_back(plan_.graph.sequence());
    }
    std::vector<std::int64_t> logits = targets;
    logits.push_back(plan_.graph.classes());
    write_safetensors(path, metadata,
                      {{"inputs", "U8", inputs, std::span<const std::uint8_t>(inputs_)},
                       {"targets", "I64", targets, std::span<const std::int64_t>(targets_)},
                       {"logits", "F32", logits, std::span<const float>(logits_)}},
                      logits_file());
    log_info(path, ": inputs, targets and logits of ", samples_, " samples");
  }

 private:
  const RunPlan& plan_;
  std::int64_t count_, samples_ = 0;
  std::vector<std::uint8_t> inputs_;
  std::vector<std::int64_t> targets_;
  std::vector<float> logits_;
};

void report(const Source& source, const RunPlan& plan, const Evaluation& e, const std::string& json) {
  const bool images = plan.graph.has_images();
  Table t;
  t.section(cat("evaluation of ", source.path, source.checkpoint ? cat(", step ", with_thousands(source.step)) : ""));
  t.row("data", plan.validation.prefix);
  t.row("loss", printed("%.6f", e.loss));
  t.row(images ? "top-1" : "accuracy", printed("%.2f %%", 100 * e.accuracy));
  if (e.accuracy5) t.row("top-5", printed("%.2f %%", 100 * *e.accuracy5));
  t.row("counted", cat(with_thousands(e.targets), images ? " images" : " characters"));
  t.row("time", printed("%.1f s", e.seconds));
  std::string table = t.str();
  table.pop_back();  // write_info_line() adds the end of the line
  write_info_line(table);
  if (json.empty()) return;
  Json record = {{"weights", source.path},
                 {"step", source.step},
                 {"validation_dataset", plan.validation.prefix},
                 {"validation_uuid", plan.validation.dataset_uuid}};
  put(record, e);
  record["seconds"] = e.seconds;
  record["ranks"] = plan.batch.ranks;
  write_output(json, result_file(), json_text(record, 2) + "\n");
}

}  // namespace

int evaluate(const EvaluateArguments& arguments, Session& session) {
  const bool root = session.rank() == 0;
  if (!arguments.logits.empty() && session.size() > 1)
    throw Error(cat("--logits writes the first samples of one rank, and there are ", session.size()),
                "leave mpirun out");
  std::optional<StartGuard> guard("the ranks did not get the experiment");
  std::unique_ptr<Communicator> start = make_mpi_communicator(session.job(), 1 << 16);
  Source source;
  if (root && !arguments.json.empty()) expect_output(arguments.json, result_file());
  if (root && !arguments.logits.empty()) expect_output(arguments.logits, logits_file());
  if (root) source = find_source(arguments);
  const Experiment experiment = shared_experiment(source.experiment, arguments.experiment.path, *start);
  source.micro_batch = of_rank_0(*start, source.micro_batch);
  guard.reset();  // from here on, the watchdog notices hangs
  Watchdog watchdog(session.job(), experiment.communication.timeout_seconds);
  Machine machine = make_machine(experiment, session.job(), thread_count(experiment, session));
  Communicator* const communicator = machine.host.get();
  Backend* const backend = machine.backend.get();
  const DatasetIndex train_index = shared_index(experiment.data.train, *communicator);
  const DatasetIndex validation_index = shared_index(experiment.data.validation, *communicator);
  if (root) warn_of_changed_data(source, train_index);
  const RunPlan plan =
      make_evaluation_plan(experiment, train_index, &validation_index, session.size(), *backend, source.micro_batch);

  std::unique_ptr<Vector> weights = backend->make_vector(plan.parameters.size());
  std::vector<float> flat(static_cast<std::size_t>(weights->size()));
  if (root && source.checkpoint) load_checkpoint_weights(*source.checkpoint, source.path, plan, flat);
  if (root && !source.checkpoint) load_safetensors(source.path, plan, flat);
  if (source.checkpoint) source.checkpoint->arrays = {};  // the values are in `flat` now
  communicator->broadcast(std::as_writable_bytes(std::span(flat)), 0);
  backend->copy_from_host(flat, *weights, 0);

  Evaluator evaluator(plan, shared_dataset(plan.validation, session.job()), *backend, *communicator, watchdog);
  Samples samples(plan, arguments.samples);
  Evaluator::AfterPass after_pass;
  if (!arguments.logits.empty())
    after_pass = [&](const MicroBatch& batch, const Program& program) { samples.add(batch, program); };
  const Evaluation result = evaluator.run(*weights, 0, after_pass, {}).value();
  watchdog.step_finished(0);
  if (root) report(source, plan, result, arguments.json);
  if (!arguments.logits.empty()) samples.write(arguments.logits);
  communicator->barrier();
  return 0;
}

}  // namespace ringtrain
