// The ranks of a pipeline: replica d's stage s is rank d x stages + s, so that a replica's stages are neighbours, and
// the ranks of a stage sum its gradients over the replicas.
#pragma once

#include <memory>
#include <string>

#include "cluster/communicator.h"
#include "cluster/links.h"
#include "cluster/rank_group.h"
#include "optim/update_share.h"

namespace ringtrain {

class StageRanks {
 public:
  // Collective over the group, whose size is a multiple of `stages`.
  StageRanks(const RankGroup& group, int stages, std::size_t chunk_bytes, const SumChoice& choice = {});

  int stage() const { return stage_; }
  int stages() const { return stages_; }
  int replica() const { return replica_; }
  int replicas() const { return replicas_; }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ + 1 == stages_; }
  int rank_of(int replica, int stage) const { return replica * stages_ + stage; }

  Communicator& over_replicas() { return *over_replicas_; }  // of this stage
  Communicator& over_stages() { return *over_stages_; }      // of this replica
  Links& links() { return *links_; }                         // between all ranks of the group
  void abort(const std::string& why);
  // Every rank updates all that its stage has; norms are of the whole model.
  UpdateShare share();

 private:
  int stage_, stages_, replica_, replicas_;
  std::unique_ptr<Communicator> over_replicas_, over_stages_;
  std::unique_ptr<Links> links_;
};

}  // namespace ringtrain
