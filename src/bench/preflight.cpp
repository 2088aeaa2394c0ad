#include "bench/preflight.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ringtrain {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const StepMeasurement& s) {
  Json passes = Json::array(), watermark = Json::array();
  for (const PassTime& p : s.passes)
    passes.push_back({{"micro_batch", p.micro_batch}, {"forward", p.forward}, {"backward", p.backward}});
  for (const WatermarkPoint& w : s.watermark) watermark.push_back({w.time, w.share});
  return {{"model", s.model},
          {"micro_batch", s.micro_batch},
          {"accumulation", s.accumulation},
          {"rows_per_rank", s.rows_per_rank},
          {"forward", s.forward},
          {"backward", s.backward},
          {"update", s.update},
          {"passes", passes},
          {"jitter", s.jitter},
          {"seconds", s.seconds},
          {"input_seconds", s.input_seconds},
          {"input_wait", s.input_wait},
          {"parameters", s.parameters},
          {"elements", s.elements},
          {"bucket_mib", s.bucket_mib},
          {"element_bytes", s.element_bytes},
          {"watermark", watermark},
          {"ranks", s.ranks},
          {"ranks_per_node", s.ranks_per_node},
          {"threads", s.threads},
          {"cores_per_node", s.cores_per_node},
          {"on_device", s.on_device},
          {"whole_workers", s.whole_workers}};
}

StepMeasurement step_from(const Json& j) {
  StepMeasurement s;
  j.at("model").get_to(s.model);
  j.at("micro_batch").get_to(s.micro_batch);
  j.at("accumulation").get_to(s.accumulation);
  j.at("rows_per_rank").get_to(s.rows_per_rank);
  j.at("forward").get_to(s.forward);
  j.at("backward").get_to(s.backward);
  j.at("update").get_to(s.update);
  for (const Json& p : j.at("passes")) s.passes.push_back({p.at("micro_batch"), p.at("forward"), p.at("backward")});
  j.at("jitter").get_to(s.jitter);
  j.at("seconds").get_to(s.seconds);
  j.at("input_seconds").get_to(s.input_seconds);
  j.at("input_wait").get_to(s.input_wait);
  j.at("parameters").get_to(s.parameters);
  j.at("elements").get_to(s.elements);
  j.at("bucket_mib").get_to(s.bucket_mib);
  j.at("element_bytes").get_to(s.element_bytes);
  for (const Json& w : j.at("watermark")) s.watermark.push_back({w.at(0), w.at(1)});
  j.at("ranks").get_to(s.ranks);
  j.at("ranks_per_node").get_to(s.ranks_per_node);
  j.at("threads").get_to(s.threads);
  j.at("cores_per_node").get_to(s.cores_per_node);
  j.at("on_device").get_to(s.on_device);
  j.at("whole_workers").get_to(s.whole_workers);
  if (s.passes.empty() || s.rows_per_rank < 1 || s.elements < 1) throw Error("a step without a measured pass");
  return s;
}

Preflight preflight_from(const Json& j) {
  Preflight p;
  j.at("version").get_to(p.version);
  p.versions_equal = j.value("versions_equal", true);
  j.at("hosts").get_to(p.hosts);
  j.at("ranks").get_to(p.ranks);
  j.at("ranks_per_node").get_to(p.ranks_per_node);
  for (const Json& c : j.value("comm", Json::array()))
    p.comm.push_back({c.at("scope"), {c.at("ranks"), c.at("bytes"), c.at("seconds"), c.value("sums", 1)}});
  const Json fits = j.value("fit", Json::object());
  for (const auto& [scope, f] : fits.items()) {
    const double alpha = f.at("alpha");
    p.fit[scope] = {alpha, f.at("beta"), f.value("gap", alpha), f.value("error", 0.0)};
  }
  for (const Json& i : j.value("input", Json::array()))
    p.input.push_back({i.at("host"), i.at("bytes_per_second"), i.at("samples_per_second")});
  p.has_step = j.contains("step");
  if (p.has_step) p.step = step_from(j.at("step"));
  p.clock_skew_seconds = j.value("clock_skew_seconds", std::vector<double>());
  for (const Json& s : j.value("slow", Json::array()))
    p.slow.push_back({s.at("host"), s.at("what"), s.at("times_median")});
  return p;
}

}  // namespace

void Preflight::keep_from(const Preflight& earlier) {
  if (earlier.hosts != hosts || earlier.ranks != ranks) return;
  if (comm.empty()) {
    comm = earlier.comm;
    fit = earlier.fit;
  }
  if (input.empty()) input = earlier.input;
  if (!has_step && earlier.has_step) {
    step = earlier.step;
    has_step = true;
  }
  for (const SlowHost& s : earlier.slow)
    if (std::none_of(slow.begin(), slow.end(), [&](const SlowHost& n) { return n.host == s.host && n.what == s.what; }))
      slow.push_back(s);
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
    j["input"].push_back(
        {{"host", i.host}, {"bytes_per_second", i.bytes_per_second}, {"samples_per_second", i.samples_per_second}});
  if (has_step) j["step"] = ringtrain::to_json(step);
  j["clock_skew_seconds"] = clock_skew_seconds;
  j["slow"] = Json::array();
  for (const SlowHost& s : slow)
    j["slow"].push_back({{"host", s.host}, {"what", s.what}, {"times_median", s.times_median}});
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Preflight parse_preflight(const std::string& json, const std::string& path) {
  const char* const advice = "measure again: ringtrain bench comm input step EXPERIMENT.yaml --json FILE";
  const Json j = Json::parse(json, nullptr, /*allow_exceptions=*/false);
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
    throw Error(cat(path, " cannot be read; expected the measurements of ringtrain bench"),
                "ringtrain bench comm input step EXPERIMENT.yaml --json preflight.json, under the launcher and on the "
                "nodes of the job (slurm/preflight.sbatch does it); --preflight names another file");
  return parse_preflight({std::istreambuf_iterator<char>(in), {}}, path);
}

std::vector<SlowHost> slow_hosts(const std::vector<std::string>& hosts, const std::vector<double>& values,
                                 const std::string& what, bool more_is_worse) {
  std::vector<SlowHost> slow;
  const double middle = median(values);
  for (std::size_t h = 0; h < hosts.size() && middle > 0; ++h) {
    const double times = more_is_worse ? values[h] / middle : middle / std::max(values[h], 1e-9 * middle);
    if (times > 1.1) slow.push_back({hosts[h], what, times});
  }
  return slow;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace ringtrain
