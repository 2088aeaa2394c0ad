#include "bench/preflight.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {

namespace {

// Visits the fields of a step's object by name. `Step` is a measurement that is read or written.
template <class Step, class Visit>
void each_field(Step& s, const Visit& visit) {
  visit("model", s.model);
  visit("micro_batch", s.micro_batch);
  visit("accumulation", s.accumulation);
  visit("rows_per_rank", s.rows_per_rank);
  visit("forward", s.forward);
  visit("backward", s.backward);
  visit("update", s.update);
  visit("passes", s.passes);
  visit("jitter", s.jitter);
  visit("full_node_pass", s.full_node_pass);
  visit("shared_pass", s.shared_pass);
  visit("shared_step", s.shared_step);
  visit("seconds", s.seconds);
  visit("input_seconds", s.input_seconds);
  visit("input_wait", s.input_wait);
  visit("parameters", s.parameters);
  visit("elements", s.elements);
  visit("bucket_mib", s.bucket_mib);
  visit("element_bytes", s.element_bytes);
  visit("watermark", s.watermark);
  visit("ranks", s.ranks);
  visit("ranks_per_node", s.ranks_per_node);
  visit("threads", s.threads);
  visit("cores_per_node", s.cores_per_node);
  visit("on_device", s.on_device);
  visit("whole_workers", s.whole_workers);
}

template <class Value>
void write(Json& j, const Value& value) {
  j = value;
}
void write(Json& j, const std::vector<PassTime>& passes) {
  j = Json::array();
  for (const PassTime& p : passes)
    j.push_back({{"micro_batch", p.micro_batch}, {"forward", p.forward}, {"backward", p.backward}});
}
void write(Json& j, const std::vector<WatermarkPoint>& watermark) {
  j = Json::array();
  for (const WatermarkPoint& w : watermark) j.push_back({w.time, w.share});
}

// Returns the number. Throws Error if it is less than `least`, or if it is an int above a thousand million. Predictions
// divide by counts and add counts, so a count must not be 0 or close to the largest int.
template <class Number>
Number number_from(const Json& j, const std::string& name, Number least) {
  constexpr int most = 1'000'000'000;
  Number value{};
  if constexpr (std::is_integral_v<Number>) {
    value = integer_from<Number>(j);
  } else {
    j.get_to(value);
  }
  const bool is_small = !std::is_same_v<Number, int> || value <= most;
  if (!(value >= least) || !is_small)
    throw Error(
        cat("\"", name, "\" is ", value, ", expected at least ", least, is_small ? "" : cat(" and at most ", most)));
  return value;
}
int count_from(const Json& object, const char* name) {
  return number_from<int>(object.at(name), name, 1);
}
double measured_from(const Json& object, const char* name) {
  return number_from<double>(object.at(name), name, 0);
}

template <class Value>
void read(const Json& j, const std::string& name, Value& value) {
  if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
    value = number_from<Value>(j, name, name == "parameters" ? 0 : 1);
  } else if constexpr (std::is_floating_point_v<Value>) {
    value = number_from<Value>(j, name, 0);
  } else {
    j.get_to(value);
  }
}
void read(const Json& j, const std::string&, std::vector<PassTime>& passes) {
  for (const Json& p : j)
    passes.push_back({measured_from(p, "micro_batch"), measured_from(p, "forward"), measured_from(p, "backward")});
}
void read(const Json& j, const std::string&, std::vector<WatermarkPoint>& watermark) {
  for (const Json& w : j) watermark.push_back({w.at(0), w.at(1)});
}

Json to_json(const StepMeasurement& s) {
  Json j;
  each_field(s, [&](const char* name, const auto& value) { write(j[name], value); });
  return j;
}

StepMeasurement step_from(const Json& j) {
  StepMeasurement s;
  each_field(s, [&](const char* name, auto& value) { read(j.at(name), name, value); });
  if (s.passes.empty()) throw Error("the step has no measured pass");
  return s;
}

Preflight preflight_from(const Json& j) {
  Preflight p;
  j.at("version").get_to(p.version);
  p.versions_equal = j.value("versions_equal", true);
  j.at("hosts").get_to(p.hosts);
  p.ranks = count_from(j, "ranks");
  p.ranks_per_node = count_from(j, "ranks_per_node");
  for (const Json& c : j.value("comm", Json::array()))
    p.comm.push_back({c.at("scope"),
                      {count_from(c, "ranks"), number_from<std::int64_t>(c.at("bytes"), "bytes", 0),
                       measured_from(c, "seconds"), c.contains("sums") ? count_from(c, "sums") : 1}});
  const Json fits = j.value("fit", Json::object());
  for (const auto& [scope, f] : fits.items()) {
    const double alpha = measured_from(f, "alpha");
    p.fit[scope] = {alpha, measured_from(f, "beta"), f.contains("gap") ? measured_from(f, "gap") : alpha,
                    f.contains("error") ? measured_from(f, "error") : 0};
  }
  for (const Json& i : j.value("input", Json::array()))
    p.input.push_back(
        {i.at("host"), measured_from(i, "bytes_per_second"), measured_from(i, "samples_per_second"),
         i.contains("loader_threads") ? number_from<int>(i.at("loader_threads"), "loader_threads", 0) : 0});
  p.has_step = j.contains("step");
  if (p.has_step) p.step = step_from(j.at("step"));
  p.clock_skew_seconds = j.value("clock_skew_seconds", std::vector<double>());
  for (const Json& s : j.value("slow", Json::array()))
    p.slow.push_back({s.at("host"), s.at("what"), measured_from(s, "times_median")});
  return p;
}

}  // namespace

void Preflight::keep_from(const Preflight& earlier) {
  const bool keeps_comm = comm.empty(), keeps_input = input.empty(), keeps_step = !has_step;
  if (comm.empty()) {
    comm = earlier.comm;
    fit = earlier.fit;
  }
  if (input.empty()) input = earlier.input;
  if (!has_step && earlier.has_step) {
    step = earlier.step;
    has_step = true;
  }
  for (const SlowHost& s : earlier.slow) {
    const bool of_step = s.what == slow_computing, of_comm = s.what == slow_all_reduce;
    if (of_step ? keeps_step : of_comm ? keeps_comm : keeps_input) slow.push_back(s);
  }
}

std::string Preflight::to_json() const {
  Json j = {{"version", version},
            {"versions_equal", versions_equal},
            {"hosts", hosts},
            {"ranks", ranks},
            {"ranks_per_node", ranks_per_node}};
  for (const CommSample& c : comm) {
    Json sample = {
        {"scope", c.scope}, {"ranks", c.sample.ranks}, {"bytes", c.sample.bytes}, {"seconds", c.sample.seconds}};
    if (c.sample.sums > 1) sample["sums"] = c.sample.sums;
    j["comm"].push_back(sample);
  }
  for (const auto& [scope, f] : fit)
    j["fit"][scope] = {{"alpha", f.alpha}, {"beta", f.beta}, {"gap", f.gap}, {"error", f.error}};
  for (const InputRate& i : input)
    j["input"].push_back({{"host", i.host},
                          {"bytes_per_second", i.bytes_per_second},
                          {"samples_per_second", i.samples_per_second},
                          {"loader_threads", i.loader_threads}});
  if (has_step) j["step"] = ringtrain::to_json(step);
  j["clock_skew_seconds"] = clock_skew_seconds;
  j["slow"] = Json::array();
  for (const SlowHost& s : slow)
    j["slow"].push_back({{"host", s.host}, {"what", s.what}, {"times_median", s.times_median}});
  return json_text(j, 1) + "\n";
}

Preflight parse_preflight(const std::string& json, const std::string& path) {
  const char* const advice = "measure again: ringtrain bench comm input step EXPERIMENT.yaml --json FILE";
  const auto j = parse_json(json);
  if (!j.is_object()) throw Error(cat(path, " is not JSON; expected what ringtrain bench --json has written"), advice);
  try {
    return preflight_from(j);
  } catch (const std::exception& e) {
    throw Error(cat(path, ": ", e.what()), advice);
  }
}

Preflight read_preflight(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    throw Error(cat(path, " cannot be read: ", std::strerror(errno), "; expected the measurements of ringtrain bench"),
                "measure first, on the nodes of the job: ringtrain bench comm input step EXPERIMENT.yaml --json "
                "preflight.json (slurm/preflight.sbatch does this); --preflight FILE reads another file");
  return parse_preflight(rest_of(in), path);
}

std::vector<Preflight> read_preflights(const std::vector<std::string>& paths) {
  std::vector<Preflight> all;
  for (const std::string& path : paths) all.push_back(read_preflight(path));
  return all;
}

OutputKind preflight_file() {
  return {"result of ringtrain bench --json", [](const std::string& path) {
            try {
              read_preflight(path);
              return true;
            } catch (const std::exception&) {
              return false;
            }
          }};
}

std::optional<Preflight> earlier_preflight(const std::string& path, const std::vector<std::string>& hosts, int ranks) {
  std::error_code failed;
  const bool is_file = std::filesystem::is_regular_file(path, failed);  // reading a pipe could take for ever
  if (!is_file || std::filesystem::file_size(path, failed) == 0) return std::nullopt;
  Preflight earlier = read_preflight(path);
  const auto shown = [](int count, const std::vector<std::string>& where) {
    return cat(counted(count, "rank"), " on ", joined(where));
  };
  if (earlier.hosts != hosts || earlier.ranks != ranks)
    throw Error(cat(path, " has measurements of ", shown(earlier.ranks, earlier.hosts), ", but this job has ",
                    shown(ranks, hosts)),
                "one file holds the measurements of one job: give another file, or remove this one");
  return earlier;
}

void Preflight::add_slow_hosts(const std::vector<double>& values, const std::string& what, bool more_is_worse) {
  const double middle = median(values);
  for (std::size_t h = 0; h < hosts.size() && middle > 0; ++h) {
    const double times = more_is_worse ? values[h] / middle : middle / std::max(values[h], 1e-9 * middle);
    if (times > 1.1) slow.push_back({hosts[h], what, times});
  }
}

namespace {

// Returns how the ranks of this kind of parallel training differ from those of a ring, or "" for a ring.
std::string difference(const ParallelConfig& p) {
  if (p.kind == "pipeline") return "parallel.kind is pipeline, whose ranks compute some of the layers";
  if (servers_work(p)) return "parallel.kind is server, whose gradients go to parameter servers";
  if (!has_server_ranks(p)) return "";
  if (p.mode == "async") return "parallel.mode is async, whose workers have no common step";
  return cat("parallel.backup_workers is ", p.backup_workers, ", and such a step does not wait for all gradients");
}

// Returns "parallel.kind=ring parallel.mode=sync". The keys that only the other kind has must go, too.
std::string ring_overrides(const ParallelConfig& parallel) {
  Experiment own;
  own.parallel = parallel;
  const Experiment ring;
  std::string text;
  for (const Field& field : schema())
    if (field.key.starts_with("parallel.") && value_text(field, own) != value_text(field, ring))
      text += cat(text.empty() ? "" : " ", field.key, "=", value_text(field, ring));
  return text;
}

}  // namespace

void refuse_other_kinds(const ParallelConfig& parallel, const std::string& what) {
  const std::string why = difference(parallel);
  if (why.empty()) return;
  throw Error(cat(what, ", but ", why), cat("set ", ring_overrides(parallel),
                                            parallel.kind == "pipeline" ? "; bench split measures pipelines" : ""));
}

std::string model_keys(const Experiment& experiment) {
  std::string text;
  for (const Field& field : schema()) {
    const std::string key(field.key);
    const bool is_of_a_pass =
        key == "precision" || key.starts_with("model.") || key == "data.image_size" || key == "data.sequence";
    // The keys of other kinds of models are left out, so that a new one of them leaves measurements as they are.
    if (is_of_a_pass && decides_what_is_learned(field, experiment))
      text += cat(text.empty() ? "" : " ", key, "=", value_text(field, experiment));
  }
  return text;
}

}  // namespace ringtrain
