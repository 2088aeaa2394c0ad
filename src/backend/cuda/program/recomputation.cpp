// Inserts recomputed blocks into a schedule. The forward commands of a block are issued again, with the same arguments,
// before its first backward command. So the bits are those of a program without recomputation.
#include <algorithm>
#include <set>

#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

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
