#include "train/replica_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine_share.h"
#include "nn/math.h"
#include "nn/parameters.h"

namespace ringtrain {
namespace {

constexpr std::size_t checksum_pieces = 4;                  // of a checksum, 16 bits each
constexpr std::size_t checksum_sums = 2 * checksum_pieces;  // the sums of the pieces and of their squares
constexpr std::size_t per_group = 1 + checksum_sums;        // one more counter for the number of ranks
constexpr std::size_t most_named = 8;                       // the most ranks that a message names
constexpr double pause_seconds = 60;                        // between two comparisons, at least
constexpr double pause_per_cost = 1000;  // and at least this many times the seconds of one comparison

void put(std::uint64_t checksum, std::span<double> to) {
  for (std::size_t i = 0; i < checksum_pieces; ++i) {
    const auto piece = static_cast<double>((checksum >> (16 * i)) & 0xFFFFu);
    to[2 * i] = piece;
    to[2 * i + 1] = piece * piece;
  }
}

bool all_equal(std::span<const double> of_group, std::int64_t ranks) {
  if (ranks < 2) return true;
  for (std::size_t i = 0; i < checksum_pieces; ++i) {
    const std::int64_t sum = std::llround(of_group[2 * i]), squares = std::llround(of_group[2 * i + 1]);
    if (sum % ranks != 0 || squares != sum / ranks * sum) return false;
  }
  return true;
}

std::uint64_t total(std::span<const std::uint64_t> checksums) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < checksums.size(); ++i) sum += checksum_term(checksums[i], i);
  return sum;
}

// The ranks, grouped by their checksums. Ranks without a copy are left out.
using Copies = std::map<std::pair<double, double>, std::vector<int>>;
Copies gather_copies(Communicator& communicator, bool has_copy, std::uint64_t checksum) {
  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<double> all(3 * size, 0.0);
  if (has_copy) {
    double* mine = all.data() + 3 * communicator.rank();
    mine[0] = 1;
    mine[1] = static_cast<double>(checksum >> 32);
    mine[2] = static_cast<double>(checksum & 0xFFFFFFFFu);
  }
  communicator.sum(all);
  Copies copies;
  for (std::size_t rank = 0; rank < size; ++rank)
    if (all[3 * rank] > 0) copies[{all[3 * rank + 1], all[3 * rank + 2]}].push_back(static_cast<int>(rank));
  return copies;
}

// Collective. Returns a text such as "rank 2 on a7" or "ranks 2 on a7 and 3 on a8".
std::string describe_ranks(Communicator& communicator, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) {
    const std::string host = broadcast_string(communicator, host_name(), ranks[i]);
    text += cat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i], " on ", host);
  }
  if (named < ranks.size()) text += cat(" and ", ranks.size() - named, " more");
  return text;
}

// Returns the advice of the error message, which continues with " on other hosts." or " without that host.".
std::string way_back(const KnownCheckpoint& checkpoint) {
  if (checkpoint.name.empty()) return "start the run again, as there is no checkpoint that is known to be good,";
  if (checkpoint.compared)
    return cat("--resume from the last checkpoint that is known to be good, ", checkpoint.name, ",");
  return cat("start the run again, or --resume from ", checkpoint.name,
             ", which is not known to be good, because the copies were not compared before it was written,");
}

}  // namespace

bool is_time_to_compare(double seconds, double cost) {
  return seconds >= std::max(pause_seconds, pause_per_cost * cost);
}

std::vector<ReplicatedTensor> replicated_tensors(const ParameterTable& parameters, Vector& weights,
                                                 Optimizer& optimizer, const Experiment& experiment) {
  std::vector<ReplicatedTensor> tensors;
  const std::vector<Parameter>& all = parameters.all();
  const auto add = [&](const auto& name_of, Vector& vector, std::int64_t size) {
    for (std::size_t i = 0; i < all.size() && all[i].offset < size; ++i)
      tensors.push_back(
          {name_of(all[i]), &vector, {all[i].offset, i + 1 < all.size() ? all[i + 1].offset : parameters.size()}});
  };
  add(weight_array, weights, parameters.size());
  for (std::size_t i = 0; i < optimizer.state().size(); ++i) {
    Vector& state = *optimizer.state()[i];
    if (optimizer.is_shared() || state.size() != parameters.trained()) continue;
    add(
        [&](const Parameter& p) {
          const std::string own = Optimizer::state_names(experiment.optimizer, p, experiment.average)[i];
          return state_array(own.empty() ? Optimizer::state_names(experiment.optimizer, experiment.average)[i] : own,
                             p);
        },
        state, parameters.trained());
  }
  return tensors;
}

ReplicaCheck::ReplicaCheck(Backend& backend, Communicator& communicator, std::vector<ReplicatedTensor> tensors,
                           ReplicaGroups groups, std::function<KnownCheckpoint()> known_good)
    : communicator_(communicator),
      tensors_(std::move(tensors)),
      groups_(std::move(groups)),
      known_good_(std::move(known_good)) {
  std::vector<ChecksumRange> ranges;
  for (const ReplicatedTensor& t : tensors_) ranges.push_back({t.vector, t.elements.begin, t.elements.end});
  checksums_ = backend.make_checksums(ranges);
}

void ReplicaCheck::start() {
  const double begin = now_seconds();
  checksums_->start();
  seconds_ = now_seconds() - begin;
}

std::vector<double> ReplicaCheck::counters() {
  std::vector<double> all(per_group * static_cast<std::size_t>(groups_.count), 0.0);
  const std::span<double> own = std::span(all).subspan(per_group * static_cast<std::size_t>(groups_.index), per_group);
  own[0] = 1;
  put(total(checksums_->values()), own.subspan(1));
  return all;
}

void ReplicaCheck::judge(std::span<const double> all, std::int64_t step) {
  for (int group = 0; group < groups_.count; ++group) {
    const auto own = all.subspan(per_group * static_cast<std::size_t>(group), per_group);
    if (!all_equal(own.subspan(1), std::llround(own[0]))) report(group, step);
  }
}

void ReplicaCheck::run(std::int64_t step) {
  start();
  std::vector<double> all = counters();
  communicator_.sum(all);
  judge(all, step);
}

// Returns the name of the first tensor whose copies are not the same on all ranks of the group. `leader` is a rank of
// the group.
std::string ReplicaCheck::first_difference(int group, int leader, std::int64_t members) {
  const bool has_copy = groups_.index == group;
  double count = communicator_.rank() == leader ? static_cast<double>(tensors_.size()) : 0;
  communicator_.sum(std::span<double>(&count, 1));
  std::vector<double> all(checksum_sums * static_cast<std::size_t>(count), 0.0);
  if (has_copy)
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      put(checksums_->values()[i], std::span(all).subspan(checksum_sums * i, checksum_sums));
  communicator_.sum(all);
  std::size_t first = 0;
  while (first + 1 < static_cast<std::size_t>(count) &&
         all_equal(std::span<const double>(all).subspan(checksum_sums * first, checksum_sums), members))
    ++first;
  return broadcast_string(communicator_, communicator_.rank() == leader ? tensors_[first].name : "", leader);
}

void ReplicaCheck::report(int group, std::int64_t step) {
  const bool has_copy = groups_.index == group;
  const Copies copies =
      gather_copies(communicator_, has_copy, has_copy ? total(checksums_->values()) : std::uint64_t{0});
  std::vector<int> members, minority;
  std::size_t largest = 0;
  for (const auto& [checksum, ranks] : copies) {
    members.insert(members.end(), ranks.begin(), ranks.end());
    largest = std::max(largest, ranks.size());
  }
  for (const auto& [checksum, ranks] : copies)
    if (2 * largest <= members.size() || ranks.size() < largest)
      minority.insert(minority.end(), ranks.begin(), ranks.end());
  std::ranges::sort(minority);
  const std::size_t others = members.size() - minority.size();
  const std::string who = describe_ranks(communicator_, minority);
  const std::string tensor =
      first_difference(group, std::ranges::min(members), static_cast<std::int64_t>(members.size()));
  const std::string way = broadcast_string(communicator_, communicator_.rank() == 0 ? way_back(known_good_()) : "", 0);
  const std::string of_group = groups_.what.empty() ? "" : cat(" of ", groups_.what, " ", group);
  const std::string differ = others == 0 ? who + " have different copies of the model"
                                         : cat(who,
                                               minority.size() == 1 ? " has a copy of the model that differs"
                                                                    : " have copies of the model that differ",
                                               " from that of the ", others, " other ranks");
  throw Error(
      cat("after step ", step, ", ", differ, of_group, "; the first tensor that differs is ", tensor),
      cat("A processor, memory or network link is probably faulty: ", way,
          others == 0            ? " on other hosts."
          : minority.size() == 1 ? " without that host."
                                 : " without those hosts.",
          " Ranks on different kinds of processors may differ by rounding alone: communication.check_every_steps=0 "
          "compares nothing."));
}

}  // namespace ringtrain
