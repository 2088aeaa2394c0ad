// One rank's machine and trainer, on the CPU or on a (host) device, with small data sets. The tests of the trainer
// share it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cuda/backend.h"
#include "base/error.h"
#include "checkpoint/snapshot.h"
#include "cluster/device_communicator.h"
#include "cluster/links.h"
#include "config/reader.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "mpi_peer.h"
#include "mpi_tests.h"
#include "ring_beside_device.h"
#include "run/machine.h"
#include "run/split.h"
#include "tests/emulation/fake_nccl.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/with_folder.h"
#include "train/trainer.h"

namespace ringtrain {

using Settings = std::vector<std::string>;
inline Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}
inline const Settings streams = {"data.order=streams", "data.sequence=8"};

class TrainerTest : public WithFolder {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(WithFolder::SetUp());
    std::ofstream names(folder_ / "names.txt"), text(folder_ / "text.txt");
    for (int i = 0; i < 200; ++i) {
      for (int n = 37 * i + 1; n > 0; n /= 7) {
        names << static_cast<char>('a' + n % 7);
        text << static_cast<char>('a' + n % 5);
      }
      names << "q\n";
    }
    names.close();
    text.close();
    std::ostringstream log;
    NamesOptions options;
    options.input.path = (folder_ / "names.txt").string();
    options.out = (folder_ / "names").string();
    options.validation = 0;
    convert_names(options, log);
    TextOptions running;
    running.input = (folder_ / "text.txt").string();
    running.out = (folder_ / "text").string();
    running.validation = 0;
    convert_text(running, log);
  }

  Experiment experiment(const std::string& data, const Settings& more) const {
    std::ofstream(folder_ / "experiment.yaml")
        << "name: test\nmodel: {kind: char_lstm, hidden: 16, layers: 2, dropout: 0.2}\ndata: {train: "
        << (folder_ / data).string() << "-train}\nbatch: {global: 24, worker: 2, micro: 2}\n"
        << "optimizer: {kind: adam, clip_norm: 1.0}\nlearning_rate: {base: 0.01}\nstop: {steps: 1000}\n";
    return read_experiment((folder_ / "experiment.yaml").string(), more);
  }

  // Returns an experiment on images that write_image_shards() has written with the prefix `data`. `rest` holds the
  // lines of model, batch, optimizer and so on.
  Experiment image_experiment(const std::string& data, int size, const std::string& rest, const Settings& more) const {
    std::ofstream(folder_ / "images.yaml")
        << "name: test\ndata: {train: " << (folder_ / data).string() << ", image_size: " << size
        << ", resize: 0, augmentation: pad_crop, pad: 2}\nstop: {steps: 1000}\n"
        << rest;
    return read_experiment((folder_ / "images.yaml").string(), more);
  }
};

struct TrainingRank {
  bool alone;  // true if this run has one rank, whatever the number of ranks of the test
  RankGroup group = alone ? *session().job().split(session().rank()) : session().job();
  std::unique_ptr<Communicator> host;
  std::unique_ptr<cuda::HostDevice> device;
  std::unique_ptr<RingBesideDevice> beside;
  std::unique_ptr<FakeNccl> nccl;                // where communication.library is nccl
  std::vector<std::unique_ptr<FakeNccl>> nccls;  // for a pipeline: one for each of its communicators
  std::unique_ptr<DeviceCommunicator> sums;
  std::unique_ptr<StageRanks> stages;  // for a pipeline
  std::unique_ptr<Backend> backend;
  Watchdog watchdog{group, 0};
  RunPlan plan;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<Trainer> trainer;

  TrainingRank(const Experiment& experiment, bool on_device, const Checkpoint* checkpoint = nullptr,
               bool is_alone = false, cuda::RunOrder order = {cuda::RunOrder::Kind::latest, 0})
      : alone(is_alone) {
    const bool fixed = experiment.communication.order == "fixed";
    host = make_mpi_communicator(group, 1 << 12, 0x7fffffff, {.algorithm = fixed ? "halving" : "auto"});
    if (on_device) {
      device = std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.order = order});
      if (!alone && stages_of(experiment.parallel) > 1) {
        const bool by_nccl = experiment.communication.library == "nccl";
        stages = by_nccl ? stages_by_nccl(experiment) : make_stage_ranks(experiment, group, device.get());
        if (by_nccl) beside = std::make_unique<RingBesideDevice>(*host, *device);
      } else if (experiment.communication.library == "nccl") {
        beside = std::make_unique<RingBesideDevice>(*host, *device);
        nccl = std::make_unique<FakeNccl>(*device, sum_over(*host));
        nccl->exchange = exchange_over(group);
        const std::int64_t elements = fixed ? bucket_elements(experiment.communication, true, host->size()) : 0;
        sums = make_nccl_communicator(nccl->api(), *device, *beside,
                                      {.fixed_order_elements = elements, .timeout_seconds = 60});
      } else {
        sums = make_staged_communicator(*device, *host);
      }
      cuda::BackendOptions options;
      options.segment_elements = 512;
      if (DeviceCommunicator* vectors = stages ? stages->device_sums() : sums.get())
        options.reduced = reduced_memory(*vectors);
      if (stages) options.poll = [this] { stages->poll(); };
      backend = cuda::make_backend(*device, options);
    } else {
      if (!alone) stages = make_stage_ranks(experiment, session().job());
      backend = make_host_backend(experiment, 1, *host, stages.get());
    }
    const DatasetIndex index = read_dataset_index(experiment.data.train);
    plan = make_run_plan(experiment, index, nullptr, host->size(), *backend);
    loader = std::make_unique<Loader>(make_dataset(plan.train), for_rank(plan, plan.train_loader, host->rank()));
    trainer = std::make_unique<Trainer>(plan, *backend, communicator(), watchdog, *loader, std::nullopt, stages.get());
    RunProgress progress;
    if (checkpoint != nullptr && host->rank() == 0) progress = progress_of(*checkpoint);
    host->broadcast(std::as_writable_bytes(std::span(&progress, 1)), 0);
    progress.position = plan.course.settled(progress.position);
    load_trainer(host->rank() == 0 ? checkpoint : nullptr, *trainer, plan, progress, communicator(), stages.get());
  }
  // Does what make_stage_ranks() does, with the test's own NCCL.
  std::unique_ptr<StageRanks> stages_by_nccl(const Experiment& experiment) {
    StageDevices devices;
    devices.sums = [this](Communicator& over) {
      nccls.push_back(std::make_unique<FakeNccl>(*device, sum_over(over)));
      return make_nccl_communicator(nccls.back()->api(), *device, over, {.timeout_seconds = 60});
    };
    devices.links = [this](Links& links, int rank, std::vector<Lane> lanes) {
      auto lane = lanes.begin();
      const auto next = [&]() -> const NcclApi& {
        auto peer = std::make_unique<MpiPeer>(lane->from == rank ? lane->to : lane->from, lane->tag);
        ++lane;
        nccls.push_back(std::make_unique<FakeNccl>(*device, std::move(peer)));
        return nccls.back()->api();
      };
      return make_nccl_links(next, *device, links, {.rank = rank, .lanes = lanes, .timeout_seconds = 60});
    };
    return std::make_unique<StageRanks>(group, static_cast<int>(experiment.parallel.stages), 1 << 12, SumChoice{},
                                        devices);
  }
  Communicator& communicator() {
    if (sums) return *sums;
    return beside ? static_cast<Communicator&>(*beside) : *host;
  }
  std::vector<StepReport> steps(int count, const Requests& requests = {}) {
    std::vector<StepReport> reports;
    for (int i = 0; i < count; ++i) reports.push_back(trainer->step(requests));
    return reports;
  }
  std::vector<float> weights() {
    std::vector<float> values(static_cast<std::size_t>(plan.parameters.size()));
    backend->copy_to_host(trainer->weights(), 0, values);
    return values;
  }
  Checkpoint snapshot() {
    RunProgress progress;
    progress.position = trainer->position();
    return take_snapshot(*trainer, plan, {progress}, communicator(), {}, stages.get());
  }
  // Returns the number of forward passes that the device has been given.
  std::int64_t passes() const {
    std::int64_t count = 0;
    for (const cuda::Call& call : device->flat_calls()) count += call.name == "cross_entropy";
    return count;
  }
};

}  // namespace ringtrain
