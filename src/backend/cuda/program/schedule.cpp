#include "backend/cuda/program/schedule.h"

#include <algorithm>
#include <set>

#include "backend/watermarks.h"
#include "base/error.h"

namespace ringtrain::cuda {

Command kernel_command(std::string name, std::vector<Access> uses, std::function<KernelLaunch(bool accumulate)> launch,
                       std::vector<std::string> finishes) {
  return {.name = std::move(name),
          .uses = std::move(uses),
          .issue = [make = std::move(launch)](Device& device, Stream stream,
                                              bool accumulate) { device.launch(make(accumulate), stream); },
          .finishes = std::move(finishes)};
}

Storage Schedule::buffer(std::string what, std::int64_t bytes) {
  storages_.push_back({std::move(what), bytes, false});
  return static_cast<Storage>(storages_.size()) - 1;
}
Storage Schedule::lasting(std::string what, std::int64_t bytes) {
  const Storage storage = buffer(std::move(what), bytes);
  item(storage).lasting = true;
  return storage;
}
Storage Schedule::per_slot(std::string what, std::int64_t bytes) {
  const Storage storage = lasting(std::move(what), bytes);
  item(storage).per_slot = true;
  return storage;
}
void Schedule::resize(Storage storage, std::int64_t bytes) {
  item(storage).bytes = bytes;
}
void Schedule::workspace(std::int64_t bytes) {
  item(0).bytes = std::max(item(0).bytes, bytes);
}

void Schedule::add(Command command) {
  std::erase_if(command.uses, [](const Access& use) { return use.storage < 0; });
  command.block = block_;
  commands_.push_back(std::move(command));
}
void Schedule::begin_backward() {
  backward_ = commands_.size();
}
void Schedule::begin_weights() {
  weights_ = commands_.size();
}

Schedule::Part Schedule::part_of(std::size_t command) const {
  return command >= weights_ ? Part::weights : command >= backward_ ? Part::backward : Part::forward;
}

void Schedule::find_lifetimes() {
  for (std::size_t i = 0; i < commands_.size(); ++i)
    for (const Access& use : commands_[i].uses) {
      Item& storage = item(use.storage);
      if (part_of(i) == Part::weights && !storage.lasting)
        throw Error(cat(commands_[i].name, ": ", storage.what, " is filled between passes, so its memory must last"));
      Life& life = storage.lives[storage.again >= 0 && static_cast<int>(i) >= storage.again ? 1 : 0];
      if (life.first < 0) {
        if (!use.write && !storage.lasting)
          throw Error(cat(commands_[i].name, " reads ", storage.what, ", which no command has written"));
        life.first = static_cast<int>(i);
      }
      life.last = static_cast<int>(i);
    }
}

void Schedule::cut_segments(const std::vector<std::int64_t>& marks, std::int64_t segment_elements) {
  std::int64_t reported = 0;  // watermark at the end of the previous segment
  for (std::size_t i = 0; i < commands_.size(); ++i) {
    const bool joins = i > 0 && part_of(i) == part_of(i - 1) && commands_[i].replayed == commands_[i - 1].replayed;
    const bool bucket_done =
        i > 0 && segment_elements > 0 && marks[i - 1] / segment_elements > reported / segment_elements;
    if (!joins || bucket_done) {
      if (i > 0) reported = marks[i - 1];
      segments_.push_back({.part = part_of(i), .begin = i, .end = i, .replayed = commands_[i].replayed});
      segments_.back().replays.resize(2 * static_cast<std::size_t>(slots_));
    }
    segments_.back().end = i + 1;
    segments_.back().watermark = part_of(i) == Part::backward ? marks[i] : 0;
  }
}

// Estimates the traffic of a command: the bytes of each entry of `uses`, without the workspace.
void Schedule::count_bytes() {
  for (Command& command : commands_) {
    if (command.bytes > 0) continue;
    for (const Access& use : command.uses)
      if (use.storage != workspace()) command.bytes += static_cast<double>(item(use.storage).bytes);
  }
}

void Schedule::plan(const ParameterTable& table, std::int64_t segment_elements) {
  insert_recomputation();
  count_bytes();
  insert_offload();
  find_lifetimes();
  turns_.assign(commands_.size(), false);
  for (const Item& storage : storages_)
    if (storage.again >= 0) turns_[static_cast<std::size_t>(storage.again)] = true;
  for (Item& storage : storages_) {
    if (storage.bytes == 0) continue;
    if (storage.lasting && storage.per_slot && slots_ > 1) {
      storage.lives[0].place = arena_.add(storage.what, storage.bytes, 0, static_cast<int>(commands_.size()));
      continue;
    }
    if (storage.lasting) {
      storage.lives[0].place = arena_.add(storage.what, storage.bytes);
      continue;
    }
    for (Life& life : storage.lives)
      if (life.first >= 0) life.place = arena_.add(storage.what, storage.bytes, life.first, life.last);
  }
  arena_.place(static_cast<int>(std::min(backward_, commands_.size())), slots_);
  cut_segments(watermarks(table, commands_), segment_elements);
}

void Schedule::bind(char* base) {
  base_ = base;
  place();
}

void Schedule::select(int slot) {
  if (slot < 0 || slot >= slots_) throw Error(cat("a program of ", slots_, " slots has no slot ", slot));
  if (slot == slot_) return;
  slot_ = slot;
  place();
}

void Schedule::place() {
  for (Item& storage : storages_) {
    for (Life& life : storage.lives)
      life.base = base_ != nullptr && life.place.planned() ? base_ + arena_.offset(life.place, slot_) : nullptr;
    storage.base = storage.lives[0].base;
  }
}

void Schedule::live_at(std::size_t command) {
  for (Item& storage : storages_)
    if (storage.again >= 0) storage.base = storage.lives[static_cast<int>(command) >= storage.again ? 1 : 0].base;
}

namespace {

// Ends a capture whose work is not complete. While a capture is open, the stream takes no other work.
void abandon_capture(Device& device, Stream stream) {
  try {
    device.end_capture(stream);
  } catch (const std::exception&) {  // the error that ended the capture is reported
  }
}

}  // namespace

void Schedule::run_segment(Device& device, Segment& segment, bool accumulate, bool graphs, const BackwardHooks* hooks) {
  const Stream stream = device.compute_stream();
  Replay& replay = segment.replays[2 * static_cast<std::size_t>(slot_) + (accumulate ? 1 : 0)];
  const bool replays = graphs && segment.replayed;
  if (replays && replay.captured.handle != 0) return device.launch(replay.captured, stream);
  const bool captures = replays && replay.runs > 0;
  if (captures) device.begin_capture(stream);
  try {
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      if (i == segment.begin || turns_[i]) live_at(i);
      commands_[i].issue(device, stream, accumulate);
      if (hooks != nullptr && hooks->poll && !captures) hooks->poll();
    }
  } catch (...) {
    if (captures) abandon_capture(device, stream);
    throw;
  }
  if (captures) {
    replay.captured = device.end_capture(stream);
    device.launch(replay.captured, stream);
  }
  ++replay.runs;
}

void Schedule::run(Device& device, Part part, bool accumulate, bool graphs, const BackwardHooks* hooks) {
  std::int64_t reported = 0;
  for (Segment& segment : segments_) {
    if (segment.part != part) continue;
    run_segment(device, segment, accumulate, graphs, hooks);
    if (hooks == nullptr) continue;
    if (hooks->ready && segment.watermark > reported) hooks->ready(segment.watermark);
    if (hooks->poll) hooks->poll();
    reported = segment.watermark;
  }
}

void Schedule::forget_captured(Part part) {
  for (Segment& segment : segments_)
    if (segment.part == part)
      for (Replay& replay : segment.replays) replay.captured = {};
}

namespace {

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

// `half` has the rates with 16-bit factors.
Rates with_math(const Rates& half, Math math) {
  const double flops = math == Math::half ? half.flops : math == Math::tf32 ? half.flops / 2 : half.flops / 14;
  return {half.bytes, flops, half.is_estimate};
}

}  // namespace

Rates rates_of(int compute_capability, Math math) {
  return with_math(compute_capability >= 100  ? Rates{6e12, 1.5e15}
                   : compute_capability >= 90 ? Rates{3.6e12, 7e14}
                                              : Rates{1.5e12, 2.3e14},
                   math);
}

// The project's maintainers measured the numbers below on such GPUs with PyTorch 2.11: a copy of 8.6 GB (bytes read and
// written), and a bf16 matrix product of 8192 x 8192 x 8192.
Rates rates_of(const DeviceFacts& device, Math math) {
  const std::string& name = device.name;
  if (has(name, " H100 ") && has(name, "HBM3") && !has(name, "MIG")) return with_math({3.0e12, 7.98e14, false}, math);
  if (has(name, " H200") && !has(name, "MIG")) return with_math({4.3e12, 7.9e14, false}, math);
  return rates_of(device.compute_capability, math);
}

double bound_seconds(double flops, double bytes, const Rates& rates) {
  return std::max(flops / rates.flops, bytes / rates.bytes);
}

double host_link_rate(int compute_capability) {
  return compute_capability >= 90 ? 5e10 : 2.3e10;
}

Traffic traffic_of(const Schedule& schedule) {
  using Part = Schedule::Part;
  Traffic t;
  for (const Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const Command& command = schedule.commands()[i];
      (segment.part == Part::forward    ? t.forward_bytes
       : segment.part == Part::backward ? t.backward_bytes
                                        : t.weights_bytes) += command.bytes;
      if (segment.part != Part::weights) t.flops += command.flops;
    }
  return t;
}

LeastSeconds least_seconds_of(const Schedule& schedule, const Rates& rates) {
  LeastSeconds least;
  for (const Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const Command& command = schedule.commands()[i];
      (segment.part == Schedule::Part::weights ? least.weights : least.pass) +=
          bound_seconds(command.flops, command.bytes, rates);
    }
  return least;
}

// Inserts recomputed blocks into a schedule. The forward commands of a block are issued again, with the same arguments,
// before its first backward command. So the bits are those of a program without recomputation.
namespace {

constexpr auto none = static_cast<std::size_t>(-1);

bool uses(const Command& command, Storage storage) {
  return std::ranges::any_of(command.uses, [&](const Access& use) { return use.storage == storage; });
}

// Returns whether the command both reads and writes the storage.
bool changes(const Command& command, Storage storage) {
  const auto as = [&](bool write) {
    return std::ranges::any_of(command.uses, [&](const Access& u) { return u.storage == storage && u.write == write; });
  };
  return as(true) && as(false);
}

struct Recomputed {
  std::size_t begin = none;           // the block's first backward command
  std::vector<std::size_t> commands;  // commands to be issued again before it
  std::set<Storage> storages;         // storages whose second lifetime begins there
};

}  // namespace

void Schedule::insert_recomputation() {
  const std::size_t end = std::min(weights_, commands_.size());
  std::vector<std::size_t> first_use(storages_.size(), none);
  std::vector<bool> last_for_good(storages_.size());  // written by a command that must not be issued again
  // A command that writes lasting memory must not be issued again. It has already counted or kept its results there,
  // such as the statistics of batch norm or the sums of the loss.
  const auto once = [&](const Command& c) {
    return std::ranges::any_of(
        c.uses, [&](const Access& a) { return a.write && a.storage != workspace() && item(a.storage).lasting; });
  };
  for (std::size_t i = 0; i < end; ++i)
    for (const Access& use : commands_[i].uses) {
      const auto s = static_cast<std::size_t>(use.storage);
      if (first_use[s] == none) first_use[s] = i;
      if (use.write && once(commands_[i])) last_for_good[s] = true;
    }

  std::vector<Recomputed> all;
  std::set<int> seen;
  for (std::size_t begin = backward_; begin < end; ++begin) {
    const int block = commands_[begin].block;
    if (block < 0 || !seen.insert(block).second) continue;
    // The next block reads this block's output. When this block's backward commands read the output too, it stays in
    // memory and is not recomputed. An output that a command has changed in place cannot stay: if that command were
    // issued again, it would read its own result.
    const auto stays = [&](Storage storage) {
      bool leaves = false, read = false, in_place = false;
      for (std::size_t i = 0; i < end; ++i) {
        if (!uses(commands_[i], storage)) continue;
        leaves = leaves || (i < backward_ && commands_[i].block != block);
        read = read || i >= begin;
        in_place = in_place || (i < backward_ && changes(commands_[i], storage));
      }
      return leaves && read && !in_place;
    };
    const auto made_here = [&](Storage storage) {
      const auto s = static_cast<std::size_t>(storage);
      const std::size_t first = first_use[s];
      return !storages_[s].lasting && !last_for_good[s] && first < backward_ && commands_[first].block == block &&
             !stays(storage);
    };
    Recomputed found{.begin = begin, .commands = {}, .storages = {}};
    const auto need = [&](const Command& command) {
      for (const Access& use : command.uses)
        if (made_here(use.storage)) found.storages.insert(use.storage);
    };
    for (std::size_t i = begin; i < end; ++i) need(commands_[i]);
    for (std::size_t i = backward_; i-- > 0;) {
      const Command& command = commands_[i];
      if (command.block != block || once(command)) continue;
      if (std::ranges::none_of(command.uses,
                               [&](const Access& a) { return a.write && found.storages.contains(a.storage); }))
        continue;
      need(command);
      found.commands.insert(found.commands.begin(), i);
    }
    if (!found.commands.empty()) all.push_back(std::move(found));
  }
  if (all.empty()) return;

  std::vector<Command> commands;
  for (std::size_t i = 0; i < commands_.size(); ++i) {
    for (const Recomputed& block : all) {
      if (block.begin != i) continue;
      for (const Storage storage : block.storages) item(storage).again = static_cast<int>(commands.size());
      for (const std::size_t again : block.commands) {
        commands.push_back(commands_[again]);
        commands.back().name += ", again";
      }
    }
    commands.push_back(commands_[i]);
  }
  if (weights_ != none) weights_ += commands.size() - commands_.size();
  commands_ = std::move(commands);
}

}  // namespace ringtrain::cuda
