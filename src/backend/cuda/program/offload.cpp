// Offloading keeps activations in the host's memory until the backward pass (vDNN, Rhu et al. 2016). An activation is
// copied out after its last write in the forward pass. It is copied back, into other memory, before its first use in
// the backward pass. The copies run in a stream of their own.
//
//   compute   conv1 | layer1.0 | ... | loss | ... | layer1.0 backward | conv1 backward
//   copies           conv1 out | layer1.0 out         layer1.0 back | conv1 back
//
// Predicted times decide which activations are offloaded, and early layers come first. An activation is chosen when the
// link to the host can copy it out during the forward pass and back in time during the backward pass. An activation
// that would come back too late stays on the device. `stretch` allows both passes to take that many times as long, so
// that more can be offloaded. Commands then wait for copies.
#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>

#include "backend/cuda/program/schedule.h"
#include "base/rounding.h"

namespace ringtrain::cuda {

namespace {

// Returns the predicted begin of each command, and the end of the last one.
std::vector<double> begin_times(const std::vector<Command>& commands, std::size_t end, const OffloadRates& rates) {
  std::vector<double> begins = {0};
  for (std::size_t i = 0; i < end; ++i)
    begins.push_back(begins.back() +
                     rates.stretch *
                         (rates.command_seconds + bound_seconds(commands[i].flops, commands[i].bytes, rates.device)));
  return begins;
}

// Plans the copies out, one after the other, each as early as possible. Returns false when the forward pass ends before
// they do.
bool leave_in_time(std::vector<Schedule::Journey>& journeys, const std::vector<double>& begins, std::size_t backward) {
  double link_free = 0;
  for (Schedule::Journey& j : journeys) {
    link_free = std::max(link_free, begins[j.written + 1]) + j.seconds;
    if (link_free > begins[backward]) return false;
    j.out_done = static_cast<std::size_t>(std::ranges::lower_bound(begins, link_free) - begins.begin());
    j.out_done = std::min(j.out_done, backward);
  }
  return true;
}

// Plans the copies back, from the last one needed to the first, each as late as possible. A copy ends before its first
// use and before the next copy begins. Returns false when a copy would have to begin before the backward pass, or
// before its copy out is done.
bool come_back_in_time(std::vector<Schedule::Journey>& journeys, const std::vector<double>& begins,
                       std::size_t backward) {
  std::vector<Schedule::Journey*> by_need;
  for (Schedule::Journey& j : journeys) by_need.push_back(&j);
  std::ranges::stable_sort(by_need, std::greater(), [](const Schedule::Journey* j) { return j->first_backward; });
  double link_free = std::numeric_limits<double>::infinity();
  for (Schedule::Journey* j : by_need) {
    link_free = std::min(link_free, begins[j->first_backward]) - j->seconds;
    if (link_free < begins[backward]) return false;
    j->back = static_cast<std::size_t>(std::ranges::upper_bound(begins, link_free) - begins.begin()) - 1;
    if (j->back <= j->out_done) return false;
  }
  return true;
}

}  // namespace

void Schedule::offload(const OffloadRates& rates) {
  offload_rates_ = rates;
  offloads_ = true;
}

void Schedule::bind_host(Device& device, std::byte* host) {
  offload_stream_ = device.make_stream(false);
  host_ = host;
  for (Travel& travel : travels_)
    for (Event* event : {&travel.written, &travel.out, &travel.free, &travel.back}) *event = device.make_event();
}

Command Schedule::copy(std::size_t which, bool out) {
  const Storage storage = travels_[which].storage;
  return {.name = item(storage).what + (out ? ", out" : ", back"),
          .uses = {{storage, !out}},
          .issue =
              [this, which, out](Device& device, Stream stream, bool) {
                const Travel& t = travels_[which];
                const Event ready = out ? t.written : t.free;
                device.record(ready, stream);
                device.wait(offload_stream_, ready);
                std::byte* const in_host = host_ + t.host_offset;
                if (out)
                  device.copy(in_host, at(t.storage), bytes(t.storage), CopyKind::to_host, offload_stream_);
                else
                  device.copy(at(t.storage), in_host, bytes(t.storage), CopyKind::to_device, offload_stream_);
                device.record(out ? t.out : t.back, offload_stream_);
              },
          .bytes = static_cast<double>(bytes(storage)),
          .replayed = false};
}

Command Schedule::wait_for_copy(std::size_t which, bool out) {
  const Storage storage = travels_[which].storage;
  return {.name = item(storage).what + (out ? " is out" : " is back"),
          .uses = {{storage}},
          .issue = [this, which, out](Device& device, Stream stream,
                                      bool) { device.wait(stream, out ? travels_[which].out : travels_[which].back); },
          .replayed = false};
}

// Returns the storages that the forward pass writes and a backward command uses again, in the order in which the
// forward pass makes them. Storages that last for the whole run, are recomputed or are too small are left out.
std::vector<Schedule::Journey> Schedule::possible_journeys(std::size_t end) const {
  constexpr auto none = static_cast<std::size_t>(-1);
  std::map<Storage, Journey> by_storage;
  for (std::size_t i = 0; i < end; ++i)
    for (const Access& use : commands_[i].uses) {
      const Item& storage = item(use.storage);
      if (storage.lasting || storage.again >= 0 || storage.bytes < offload_rates_.least) continue;
      const double seconds = offload_rates_.copy_seconds + static_cast<double>(storage.bytes) / offload_rates_.link;
      Journey& j = by_storage.try_emplace(use.storage, Journey{use.storage, none, none, seconds}).first->second;
      if (i < backward_ && use.write) j.written = i;
      if (i >= backward_ && j.first_backward == none) j.first_backward = i;
    }
  std::vector<Journey> possible;
  for (const auto& [storage, j] : by_storage)
    if (j.written != none && j.first_backward != none) possible.push_back(j);
  std::ranges::stable_sort(possible, {}, &Journey::written);
  return possible;
}

std::vector<Schedule::Journey> Schedule::choose_journeys(std::size_t end) {
  const std::vector<double> begins = begin_times(commands_, end, offload_rates_);
  host_traffic_ = {.forward_seconds = begins[backward_] / offload_rates_.stretch,
                   .backward_seconds = (begins[end] - begins[backward_]) / offload_rates_.stretch};
  std::vector<Journey> chosen;
  for (const Journey& j : possible_journeys(end)) {
    std::vector<Journey> with = chosen;
    with.push_back(j);
    if (leave_in_time(with, begins, backward_) && come_back_in_time(with, begins, backward_)) chosen = std::move(with);
  }
  return chosen;
}

void Schedule::insert_offload() {
  const std::size_t end = std::min(weights_, commands_.size());
  if (!offloads_ || backward_ >= end) return;
  std::vector<Journey> chosen = choose_journeys(end);
  for (const Journey& j : chosen) {
    const std::int64_t offset = round_up(host_traffic_.bytes, alignment);
    travels_.push_back({.storage = j.storage, .host_offset = offset});
    host_traffic_.bytes = offset + bytes(j.storage);
    host_traffic_.out_seconds += j.seconds;
    host_traffic_.back_seconds += j.seconds;
  }

  // These lists hold the copies and waits to be inserted before each command, in the order in which they are issued. A
  // copy is issued before a wait for another copy.
  std::vector<std::vector<Command>> forward(end + 1), backward(end + 1);
  std::vector<std::vector<Storage>> returns(end + 1);
  std::vector<std::size_t> by_need;
  for (std::size_t t = 0; t < chosen.size(); ++t) {
    forward[chosen[t].written + 1].push_back(copy(t, true));
    by_need.push_back(t);
  }
  for (std::size_t t = 0; t < chosen.size(); ++t) forward[chosen[t].out_done].push_back(wait_for_copy(t, true));
  std::ranges::stable_sort(by_need, {}, [&](std::size_t t) { return chosen[t].first_backward; });
  for (const std::size_t t : by_need) {
    backward[chosen[t].back].push_back(copy(t, false));
    returns[chosen[t].back].push_back(chosen[t].storage);
  }
  for (const std::size_t t : by_need) backward[chosen[t].first_backward].push_back(wait_for_copy(t, false));

  std::vector<Command> commands;
  std::vector<int> moved_to;
  std::map<Storage, int> again;
  const std::size_t first_backward = backward_;
  for (std::size_t i = 0; i < commands_.size(); ++i) {
    if (i < end) std::ranges::move(forward[i], std::back_inserter(commands));
    if (i == first_backward) backward_ = commands.size();
    if (i < end) {
      for (std::size_t k = 0; k < returns[i].size(); ++k) again[returns[i][k]] = static_cast<int>(commands.size() + k);
      std::ranges::move(backward[i], std::back_inserter(commands));
    }
    moved_to.push_back(static_cast<int>(commands.size()));
    commands.push_back(std::move(commands_[i]));
  }
  for (Item& storage : storages_)
    if (storage.again >= 0) storage.again = moved_to[static_cast<std::size_t>(storage.again)];
  for (const auto& [storage, command] : again) item(storage).again = command;
  if (weights_ < commands_.size()) weights_ += commands.size() - commands_.size();
  commands_ = std::move(commands);
}

}  // namespace ringtrain::cuda
