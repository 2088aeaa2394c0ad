// Questions about the nodes of a graph, which backends ask when they join neighbouring nodes.
#pragma once

#include <cstddef>
#include <vector>

#include "nn/graph.h"

namespace ringtrain {

class GraphReader {
 public:
  // Keeps a reference to the graph's nodes.
  explicit GraphReader(const Graph& graph)
      : nodes_(graph.nodes()), consumers_(nodes_.size()), block_of_(nodes_.size()) {
    for (int i = 0; i < size(); ++i)
      for (const int from : node_at(i).inputs) consumers_[at(from)].push_back(i);
    for (int i = 1; i < size(); ++i)
      block_of_[at(i)] = block_of_[at(i - 1)] + (node_at(i).block != node_at(i - 1).block ? 1 : 0);
  }

  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node_at(int i) const { return nodes_[at(i)]; }
  int input(int i, std::size_t which = 0) const { return node_at(i).inputs[which]; }
  // Returns the node's operation, or null if it is of another kind.
  template <class Kind>
  const Kind* as(int i) const {
    return std::get_if<Kind>(&node_at(i).operation);
  }
  const std::vector<int>& consumers(int i) const { return consumers_[at(i)]; }
  // Returns the only consumer, or -1 if there is none or more than one.
  int consumer(int i) const { return consumers(i).size() == 1 ? consumers(i)[0] : -1; }
  template <class Kind>
  int consumer_that_is(int i) const {
    const int next = consumer(i);
    return next >= 0 && as<Kind>(next) != nullptr ? next : -1;
  }
  // Returns the number of the node's block. Neighbouring nodes outside of blocks have a number of their own, too.
  int block_of(int i) const { return block_of_[at(i)]; }

 private:
  const std::vector<Node>& nodes_;
  std::vector<std::vector<int>> consumers_;
  std::vector<int> block_of_;
};

}  // namespace ringtrain
