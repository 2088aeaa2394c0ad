// Recomputed blocks in the schedule of an image program. The steps, their slices and their primitives are the same as
// without recomputation. The results are therefore the same, bit for bit. Only the places of the values differ.
//
//   forward     block 1 | block 2 | head            only the input of a recomputed block is kept
//   backward    head' | 2 again | 2' | 1 again | 1'         a ' marks backward steps
#include <algorithm>
#include <memory>

#include "backend/cpu/schedule.h"

namespace ringtrain::cpu {

namespace {

constexpr auto none = static_cast<std::size_t>(-1);

template <class Element>
bool contains(const std::vector<Element>& all, Element one) {
  return std::ranges::find(all, one) != all.end();
}

// The values that the forward steps of a block make, and the steps that must run again before its backward steps.
class Block {
 public:
  Block(const std::vector<Step>& steps, std::size_t backward, std::size_t storages, int block)
      : steps_(steps), backward_(backward), block_(block), first_use_(storages, none) {
    for (std::size_t i = 0; i < steps.size(); ++i)
      for (int use : steps[i].uses)
        if (first_use_[at(use)] == none) first_use_[at(use)] = i;
    for (std::size_t i = backward; i < steps.size(); ++i) {
      if (steps[i].block != block) continue;
      begin_ = std::min(begin_, i);
      end_ = i + 1;
    }
    if (begin_ == none) return;
    find_early();
    find_replayed();
  }

  // The block's backward steps are in [begin, end).
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }
  // Whole steps of other blocks that were deferred into this range. They can run before it, which frees their memory.
  const std::vector<std::size_t>& early() const { return early_; }
  const std::vector<std::size_t>& replayed() const { return replayed_; }
  const std::vector<int>& revived() const { return revived_; }

 private:
  static std::size_t at(int storage) { return static_cast<std::size_t>(storage); }
  bool made_here(int storage) const {
    const std::size_t first = first_use_[at(storage)];
    return first < backward_ && steps_[first].block == block_ && !steps_[first].once;
  }

  void find_early() {
    for (std::size_t i = begin_; i < end_; ++i) {
      const Step& step = steps_[i];
      const bool ready = std::ranges::all_of(
          step.uses, [&](int use) { return first_use_[at(use)] < begin_ || first_use_[at(use)] == i; });
      if (step.block != block_ && step.whole && ready) early_.push_back(i);
    }
  }

  // The output of a block is kept as the input of the next block. If this block's own backward steps read it too, it is
  // kept a little longer and not recomputed.
  bool is_kept(int storage) const {
    bool leaves = false, stays = false;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!contains(steps_[i].uses, storage)) continue;
      if (i < backward_ && steps_[i].block != block_) leaves = true;
      if (i >= begin_ && !contains(early_, i)) stays = true;
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
    for (std::size_t i = begin_; i < steps_.size(); ++i)
      if (!contains(early_, i)) need(steps_[i]);
    for (std::size_t i = backward_; i-- > 0;) {
      const Step& step = steps_[i];
      if (step.block != block_ || step.once) continue;
      const bool makes =
          std::ranges::any_of(step.uses, [&](int use) { return needed[at(use)] && first_use_[at(use)] == i; });
      if (!makes) continue;
      need(step);
      replayed_.insert(replayed_.begin(), i);
    }
    for (std::size_t s = 0; s < needed.size(); ++s)
      if (needed[s]) revived_.push_back(static_cast<int>(s));
  }

  const std::vector<Step>& steps_;
  std::size_t backward_;
  int block_;
  std::size_t begin_ = none, end_ = 0;
  std::vector<std::size_t> first_use_;         // by storage
  std::vector<std::size_t> early_, replayed_;  // steps
  std::vector<int> revived_;                   // storages
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
  std::vector<std::unique_ptr<Block>> blocks;
  for (int block : wanted)
    if (auto found = std::make_unique<Block>(steps_, backward_, storages_.size(), block); !found->replayed().empty())
      blocks.push_back(std::move(found));

  std::vector<std::size_t> segment_of(steps_.size());
  for (std::size_t s = 0; s < segments_.size(); ++s)
    for (std::size_t i = segments_[s].begin; i < segments_[s].end; ++i) segment_of[i] = s;
  std::vector<Place> places;
  std::vector<bool> placed(steps_.size());
  const auto place = [&](std::size_t step) {
    if (placed[step]) return;
    placed[step] = true;
    places.push_back({step, segment_of[step]});
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const auto& block : blocks) {
      if (block->begin() != i) continue;
      for (std::size_t step : block->early()) place(step);
      const std::size_t first = places.size();
      for (std::size_t step : block->replayed())
        places.push_back({step, segments_.size() + segment_of[step], nullptr, true});
      places[first].begins = block.get();
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
      for (int storage : p.begins->revived()) {
        segments.back().revives.push_back(storage);
        storages_[static_cast<std::size_t>(storage)].again = static_cast<int>(segments.size()) - 1;
      }
    steps.push_back(steps_[p.step]);
    if (p.again) steps.back().name += ", again";
  }
  steps_ = std::move(steps);
  segments_ = std::move(segments);
}

}  // namespace ringtrain::cpu
