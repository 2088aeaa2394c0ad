#include "backend/cpu/schedule.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace ringtrain::cpu {

int Schedule::append(Storage storage) {
  storages_.push_back(std::move(storage));
  return static_cast<int>(storages_.size()) - 1;
}
int Schedule::per_image(std::string what, std::int64_t bytes) {
  return append({.what = std::move(what), .bytes = bytes, .images = true});
}
int Schedule::fixed(std::string what, std::int64_t bytes) {
  return append({.what = std::move(what), .bytes = bytes});
}
int Schedule::lasting(std::string what, std::int64_t bytes) {
  return append({.what = std::move(what), .bytes = bytes, .lasting = true});
}
void Schedule::resize(int storage, std::int64_t bytes) {
  storages_[static_cast<std::size_t>(storage)].bytes = bytes;
}

void Schedule::add(Step step) {
  step.block = block_;
  if (step.whole) {
    steps_.push_back(std::move(step));
    cut();
  } else {
    steps_.push_back(std::move(step));
  }
}
void Schedule::defer(Step step) {
  step.block = block_;
  waiting_.push_back(std::move(step));
}
void Schedule::cut() {
  for (Step& step : waiting_) steps_.push_back(std::move(step));
  waiting_.clear();
}
void Schedule::begin_backward() {
  cut();
  backward_ = steps_.size();
}

void Schedule::prepare() {
  cut();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const bool joins = i > 0 && i != backward_ && !steps_[i].whole && !steps_[i - 1].whole;
    if (joins)
      segments_.back().end = i + 1;
    else
      segments_.push_back({i, i + 1, 0});
  }
  for (Segment& segment : segments_) {
    if (!steps_[segment.begin].whole) segment.slice = choose_slice(segment);
    for (std::size_t i = segment.begin; i < segment.end; ++i)
      if (steps_[i].prepare) steps_[i].prepare(segment.slice == 0 ? images_ : segment.slice);
  }
  insert_recomputation();
  find_lifetimes();
  seconds_.assign(steps_.size(), 0);
}

void Schedule::find_lifetimes() {
  std::vector<int> segment_of(steps_.size());
  for (std::size_t s = 0; s < segments_.size(); ++s)
    for (std::size_t i = segments_[s].begin; i < segments_[s].end; ++i) segment_of[i] = static_cast<int>(s);
  for (std::size_t i = 0; i < steps_.size(); ++i)
    for (int use : steps_[i].uses) {
      Storage& s = storages_[static_cast<std::size_t>(use)];
      Life& life = s.lives[s.again >= 0 && segment_of[i] >= s.again ? 1 : 0];
      if (life.first < 0) life.first = static_cast<int>(i);
      life.last = static_cast<int>(i);
    }
  for (Storage& s : storages_)
    for (Life& life : s.lives) {
      if (s.lasting || life.first < 0) continue;
      const int first = segment_of[static_cast<std::size_t>(life.first)];
      const int last = segment_of[static_cast<std::size_t>(life.last)];
      life.sliced = s.images && first == last && !steps_[static_cast<std::size_t>(life.first)].whole;
      if (life.sliced) continue;
      // This memory is in use from the first step of the first slice to the last step of the last slice.
      life.first = static_cast<int>(segments_[static_cast<std::size_t>(first)].begin);
      life.last = static_cast<int>(segments_[static_cast<std::size_t>(last)].end) - 1;
    }
}

// Returns the largest divisor of the micro-batch for which the maps of a slice fit into 12 MiB, a share of the
// last-level cache. A slice has at least an image per thread, and at least the images that its steps ask for.
std::int64_t Schedule::choose_slice(const Segment& segment) const {
  constexpr std::int64_t cache_bytes = 12 << 20;
  std::vector<int> used;
  std::int64_t least = threads_;
  for (std::size_t i = segment.begin; i < segment.end; ++i) least = std::max(least, steps_[i].least_images);
  for (std::size_t i = segment.begin; i < segment.end; ++i)
    used.insert(used.end(), steps_[i].uses.begin(), steps_[i].uses.end());
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::int64_t bytes = 1;
  for (int use : used)
    if (storages_[static_cast<std::size_t>(use)].images) bytes += storages_[static_cast<std::size_t>(use)].bytes;
  const std::int64_t wanted = std::max<std::int64_t>(cache_bytes / bytes, 1);
  std::int64_t best = images_;
  for (std::int64_t n = images_; n >= 1; --n) {
    if (images_ % n != 0) continue;
    if (n < least) break;
    best = n;
    if (n <= wanted) break;
  }
  return best;
}

void Schedule::plan(const ParameterTable& table) {
  for (Storage& s : storages_) {
    if (s.lasting) {
      s.lives[0].buffer = arena_.add(s.what, s.bytes);
      continue;
    }
    for (Life& life : s.lives) {
      if (life.first < 0) continue;  // no step uses it
      const std::int64_t slice = [&] {
        for (const Segment& g : segments_)
          if (static_cast<std::size_t>(life.first) < g.end) return g.slice;
        return images_;
      }();
      const std::int64_t copies = !s.images ? 1 : (life.sliced ? slice : images_);
      life.buffer = arena_.add(&life == s.lives ? s.what : s.what + ", again", copies * s.bytes, life.first, life.last);
    }
  }
  arena_.place(static_cast<int>(std::min(backward_, steps_.size())), slots_);

  std::map<std::string, std::size_t> finished;
  for (std::size_t i = 0; i < steps_.size(); ++i)
    for (const std::string& name : steps_[i].finishes) finished[name] = i;
  watermarks_.assign(steps_.size(), 0);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const Parameter& p : table.all()) {
      const auto found = finished.find(p.name);
      if (found == finished.end() || found->second > i) break;
      watermarks_[i] = p.offset + (p.count + 63) / 64 * 64;
    }
  }
}

void Schedule::bind(char* base, int slot) {
  for (Storage& s : storages_) {
    for (Life& life : s.lives) life.base = life.buffer.planned() ? base + arena_.offset(life.buffer, slot) : nullptr;
    live(s, 0);
  }
}

void Schedule::live(Storage& storage, std::size_t life) const {
  storage.base = storage.lives[life].base;
  storage.sliced = storage.lives[life].sliced;
}

void Schedule::run_step(std::size_t index, const Slice& slice, const BackwardHooks* hooks) {
  const auto start = std::chrono::steady_clock::now();
  steps_[index].run(slice);
  seconds_[index] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (hooks != nullptr && hooks->poll) hooks->poll();
}

void Schedule::run(const BackwardHooks* hooks) {
  if (hooks == nullptr) {
    ++runs_;
    for (Storage& s : storages_)
      if (s.again >= 0) live(s, 0);
  }
  std::int64_t reported = 0;
  for (const Segment& segment : segments_) {
    if ((segment.begin >= backward_) != (hooks != nullptr)) continue;
    for (int storage : segment.revives) live(storages_[static_cast<std::size_t>(storage)], 1);
    const std::int64_t slice = segment.slice == 0 ? images_ : segment.slice;
    for (std::int64_t first = 0; first < images_; first += slice)
      for (std::size_t i = segment.begin; i < segment.end; ++i) run_step(i, {first, slice}, hooks);
    if (hooks == nullptr || !hooks->ready) continue;
    const std::int64_t mark = watermarks_[segment.end - 1];
    if (mark > reported) hooks->ready(mark);
    reported = mark;
  }
}

std::vector<StepCost> Schedule::costs() const {
  std::vector<StepCost> result;
  for (const Segment& segment : segments_)
    for (std::size_t i = segment.begin; i < segment.end; ++i)
      result.push_back({steps_[i].name, i >= backward_, seconds_[i],
                        steps_[i].flops_per_image * static_cast<double>(images_ * runs_),
                        segment.slice == 0 ? images_ : segment.slice});
  return result;
}

void Schedule::reset_costs() {
  seconds_.assign(steps_.size(), 0);
  runs_ = 0;
}

}  // namespace ringtrain::cpu
