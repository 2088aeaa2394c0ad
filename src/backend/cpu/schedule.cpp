#include "backend/cpu/schedule.h"

#include <algorithm>
#include <set>

#include "backend/watermarks.h"
#include "base/clock.h"

namespace ringtrain::cpu {

int Schedule::append(Storage storage) {
  storages_.push_back(std::move(storage));
  return static_cast<int>(storages_.size()) - 1;
}

void Schedule::add(Step step, std::function<void(const Slice&)> run) {
  std::erase(step.uses, -1);
  step.block = block_;
  step.run = std::move(run);
  const bool cuts = step.whole && !step.waits;
  (step.waits ? waiting_ : steps_).push_back(std::move(step));
  if (cuts) cut();
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
      segments_.push_back({i, i + 1, samples_});
  }
  for (Segment& segment : segments_) {
    if (!steps_[segment.begin].whole) segment.slice = choose_slice(segment);
    for (std::size_t i = segment.begin; i < segment.end; ++i)
      if (steps_[i].prepare) steps_[i].prepare(segment.slice);
  }
  insert_recomputation();
  find_lifetimes();
  seconds_.assign(steps_.size(), 0);
}

std::vector<std::size_t> Schedule::segments_of_steps() const {
  std::vector<std::size_t> segment_of(steps_.size());
  for (std::size_t s = 0; s < segments_.size(); ++s)
    for (std::size_t i = segments_[s].begin; i < segments_[s].end; ++i) segment_of[i] = s;
  return segment_of;
}

void Schedule::find_lifetimes() {
  const std::vector<std::size_t> segment_of = segments_of_steps();
  for (std::size_t i = 0; i < steps_.size(); ++i)
    for (int use : steps_[i].uses) {
      Storage& s = storages_[static_cast<std::size_t>(use)];
      Life& life = s.lives[segment_of[i] >= s.again ? 1 : 0];
      if (life.first < 0) life.first = static_cast<int>(i);
      life.last = static_cast<int>(i);
    }
  for (Storage& s : storages_)
    for (Life& life : s.lives) {
      if (s.lasting || life.first < 0) continue;
      const std::size_t first = segment_of[static_cast<std::size_t>(life.first)];
      const std::size_t last = segment_of[static_cast<std::size_t>(life.last)];
      life.sliced = s.per_sample && first == last && !steps_[static_cast<std::size_t>(life.first)].whole;
      if (life.sliced) continue;
      // This memory is in use from the first step of the first slice to the last step of the last slice.
      life.first = static_cast<int>(segments_[first].begin);
      life.last = static_cast<int>(segments_[last].end) - 1;
    }
}

// Returns the largest divisor of the micro-batch for which the maps of a slice fit into 12 MiB, a share of the
// last-level cache. A slice has at least a sample per thread, and at least the samples that its steps ask for.
std::int64_t Schedule::choose_slice(const Segment& segment) const {
  constexpr std::int64_t cache_bytes = 12 << 20;
  std::set<int> used;
  std::int64_t least = threads_;
  for (std::size_t i = segment.begin; i < segment.end; ++i) {
    least = std::max(least, steps_[i].least_samples);
    used.insert(steps_[i].uses.begin(), steps_[i].uses.end());
  }
  std::int64_t bytes = 1;
  for (int use : used)
    if (storages_[static_cast<std::size_t>(use)].per_sample) bytes += storages_[static_cast<std::size_t>(use)].bytes;
  const std::int64_t wanted = std::max<std::int64_t>(cache_bytes / bytes, 1);
  std::int64_t best = samples_;
  for (std::int64_t n = samples_; n >= 1; --n) {
    if (samples_ % n != 0) continue;
    if (n < least) break;
    best = n;
    if (n <= wanted) break;
  }
  return best;
}

ArenaPlan Schedule::place_storages(bool last_first) {
  ArenaPlan arena;
  for (std::size_t n = 0; n < storages_.size(); ++n) {
    Storage& s = storages_[last_first ? storages_.size() - 1 - n : n];
    if (s.lasting) {
      s.lives[0].buffer = arena.add(s.what, s.bytes);
      continue;
    }
    for (Life& life : s.lives) {
      if (life.first < 0) continue;  // no step uses it
      const std::int64_t slice = [&] {
        for (const Segment& g : segments_)
          if (static_cast<std::size_t>(life.first) < g.end) return g.slice;
        return samples_;
      }();
      const std::int64_t copies = !s.per_sample ? 1 : (life.sliced ? slice : samples_);
      life.buffer = arena.add(&life == s.lives ? s.what : s.what + ", again", copies * s.bytes, life.first, life.last);
    }
  }
  arena.place(static_cast<int>(std::min(backward_, steps_.size())), slots_);
  return arena;
}

void Schedule::plan(const ParameterTable& table) {
  // Buffers of the same size get their places in the order in which they were added. It depends on the model whether
  // the first or the last ones should come first.
  const std::int64_t bytes = place_storages(true).bytes();
  arena_ = place_storages(false);
  if (bytes < arena_.bytes()) arena_ = place_storages(true);

  watermarks_ = watermarks(table, steps_);
}

void Schedule::bind(char* base, int slot) {
  for (Storage& s : storages_) {
    for (Life& life : s.lives) life.base = life.buffer.planned() ? base + arena_.offset(life.buffer, slot) : nullptr;
    s.present = 0;
  }
}

void Schedule::run(const BackwardHooks* hooks) {
  if (hooks == nullptr) {
    ++runs_;
    for (Storage& s : storages_) s.present = 0;
  }
  std::int64_t reported = 0;
  for (const Segment& segment : segments_) {
    if ((segment.begin >= backward_) != (hooks != nullptr)) continue;
    for (int storage : segment.revives) storages_[static_cast<std::size_t>(storage)].present = 1;
    for (std::int64_t first = 0; first < samples_; first += segment.slice)
      for (std::size_t i = segment.begin; i < segment.end; ++i) {
        const double start = now_seconds();
        steps_[i].run({first, segment.slice});
        seconds_[i] += now_seconds() - start;
        if (hooks != nullptr && hooks->poll) hooks->poll();
      }
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
                        steps_[i].flops_per_sample * static_cast<double>(samples_ * runs_), segment.slice});
  return result;
}

// Recomputed blocks. The steps, their slices and their primitives are the same as
// without recomputation. The results are therefore the same, bit for bit. Only the places of the values differ.
//
//   forward     block 1 | block 2 | head            only the input of a recomputed block is kept
//   backward    head' | 2 again | 2' | 1 again | 1'         a ' marks backward steps
namespace {

constexpr auto none = static_cast<std::size_t>(-1);

template <class Element>
bool contains(const std::vector<Element>& all, Element one) {
  return std::ranges::find(all, one) != all.end();
}

// The values that the forward steps of a block make, and the steps that must run again before its backward steps.
struct Block {
  Block(const std::vector<Step>& steps, std::size_t backward, std::size_t storages, int block)
      : steps_(steps), backward_(backward), block_(block), first_use_(storages, none) {
    for (std::size_t i = 0; i < steps.size(); ++i)
      for (int use : steps[i].uses)
        if (first_use_[at(use)] == none) first_use_[at(use)] = i;
    for (std::size_t i = backward; i < steps.size(); ++i) {
      if (steps[i].block != block) continue;
      begin = std::min(begin, i);
      end = i + 1;
    }
    if (begin == none) return;
    find_early();
    find_replayed();
  }

  std::size_t begin = none, end = 0;  // steps: the block's backward steps are in [begin, end)
  // Whole steps of other blocks that were deferred into this range. They can run before it, which frees their memory.
  std::vector<std::size_t> early;
  std::vector<std::size_t> replayed;  // steps
  std::vector<int> revived;           // storages

 private:
  static std::size_t at(int storage) { return static_cast<std::size_t>(storage); }
  bool made_here(int storage) const {
    const std::size_t first = first_use_[at(storage)];
    return first < backward_ && steps_[first].block == block_ && !steps_[first].once;
  }

  void find_early() {
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = steps_[i];
      const bool ready = std::ranges::all_of(
          step.uses, [&](int use) { return first_use_[at(use)] < begin || first_use_[at(use)] == i; });
      if (step.block != block_ && step.whole && ready) early.push_back(i);
    }
  }

  // The output of a block is kept as the input of the next block. If this block's own backward steps read it too, it is
  // kept a little longer and not recomputed.
  bool is_kept(int storage) const {
    bool leaves = false, stays = false;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!contains(steps_[i].uses, storage)) continue;
      if (i < backward_ && steps_[i].block != block_) leaves = true;
      if (i >= begin && !contains(early, i)) stays = true;
    }
    return leaves && stays;
  }

  void find_replayed() {
    std::vector<bool> needed(first_use_.size()), kept(first_use_.size());
    for (std::size_t s = 0; s < kept.size(); ++s)
      kept[s] = made_here(static_cast<int>(s)) && is_kept(static_cast<int>(s));
    const auto need = [&](const Step& step) {
      for (int use : step.uses)
        if (made_here(use) && !kept[at(use)]) needed[at(use)] = true;
    };
    for (std::size_t i = begin; i < steps_.size(); ++i)
      if (!contains(early, i)) need(steps_[i]);
    for (std::size_t i = backward_; i-- > 0;) {
      const Step& step = steps_[i];
      if (step.block != block_ || step.once) continue;
      const bool makes =
          std::ranges::any_of(step.uses, [&](int use) { return needed[at(use)] && first_use_[at(use)] == i; });
      if (!makes) continue;
      need(step);
      replayed.insert(replayed.begin(), i);
    }
    for (std::size_t s = 0; s < needed.size(); ++s)
      if (needed[s]) revived.push_back(static_cast<int>(s));
  }

  const std::vector<Step>& steps_;
  std::size_t backward_;
  int block_;
  std::vector<std::size_t> first_use_;  // by storage
};

// A step in the new order.
struct Place {
  std::size_t step;               // in the old order
  std::size_t group;              // neighbours of the same group run together, slice by slice
  const Block* begins = nullptr;  // the block whose recomputation begins here
  bool again = false;
};

}  // namespace

void Schedule::insert_recomputation() {
  std::vector<int> wanted;
  for (std::size_t i = backward_; i < steps_.size(); ++i)
    if (steps_[i].block >= 0 && !contains(wanted, steps_[i].block)) wanted.push_back(steps_[i].block);
  if (wanted.empty()) return;
  std::vector<Block> blocks;
  for (int block : wanted)
    if (Block found(steps_, backward_, storages_.size(), block); !found.replayed.empty())
      blocks.push_back(std::move(found));

  const std::vector<std::size_t> segment_of = segments_of_steps();
  std::vector<Place> places;
  std::vector<bool> placed(steps_.size());
  const auto place = [&](std::size_t step) {
    if (placed[step]) return;
    placed[step] = true;
    places.push_back({step, segment_of[step]});
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const Block& block : blocks) {
      if (block.begin != i) continue;
      for (std::size_t step : block.early) place(step);
      const std::size_t first = places.size();
      for (std::size_t step : block.replayed)
        places.push_back({step, segments_.size() + segment_of[step], nullptr, true});
      places[first].begins = &block;
    }
    place(i);
  }

  std::vector<Step> steps;
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Place& p = places[i];
    const bool joins = i > 0 && p.group == places[i - 1].group && p.begins == nullptr;
    if (!joins) segments.push_back({i, i, segments_[segment_of[p.step]].slice});
    segments.back().end = i + 1;
    if (p.begins != nullptr)
      for (int storage : p.begins->revived) {
        segments.back().revives.push_back(storage);
        storages_[static_cast<std::size_t>(storage)].again = segments.size() - 1;
      }
    steps.push_back(steps_[p.step]);
    if (p.again) steps.back().name += ", again";
  }
  steps_ = std::move(steps);
  segments_ = std::move(segments);
}

}  // namespace ringtrain::cpu
