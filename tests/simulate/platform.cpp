// SimGrid's platform: nodes with a given memory and network, in a fat tree or a dragonfly. smpirun loads it as a
// library.
//
// RINGTRAIN_PLATFORM is "TOPOLOGY NODES MESSAGE_GB_S NODE_US NETWORK_GB_S NETWORK_US".
//
// A node is one host for all of its ranks. Each message travels at MESSAGE_GB_S at most. Messages to other nodes share
// the node's network. Values that ranks of a node read in place are no messages (node_exchange.cpp).
//
// SimGrid gives a message a share that is smaller the larger its latency is. Therefore all latency is on the first link
// of a route, and routes of different latency have no link in common but those of the network.
#include <cstdio>
#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <sstream>
#include <string>

namespace sg4 = simgrid::s4u;

namespace {

struct Stated {
  std::string topology;
  unsigned nodes = 0;
  double message_gb_s = 0, node_us = 0, network_gb_s = 0, network_us = 0;
} stated;

using Ends = std::pair<simgrid::kernel::routing::NetPoint*, simgrid::kernel::routing::NetPoint*>;

Ends make_node(const sg4::NetZone* cluster, const std::vector<unsigned long>&, unsigned long id) {
  const std::string name = "n" + std::to_string(id);
  sg4::NetZone* node = sg4::create_star_zone(name + "-zone");
  node->set_parent(cluster);
  const sg4::Host* host = node->create_host(name, 1e11)->seal();
  const auto first_link = [&](const char* kind, double us) {
    return node->create_link(name + kind, stated.message_gb_s * 1e9)
        ->set_latency(us * 1e-6)
        ->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE)
        ->seal();
  };
  const sg4::LinkInRoute inside(first_link("-inside", stated.node_us));
  const sg4::LinkInRoute outside(first_link("-outside", stated.network_us));
  node->add_route(host->get_netpoint(), host->get_netpoint(), nullptr, nullptr, {inside}, false);
  node->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {outside}, false);
  node->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, std::vector<sg4::LinkInRoute>{}, false);
  auto* gateway = node->create_router(name + "-router");
  node->seal();
  return {node->get_netpoint(), gateway};
}

}  // namespace

extern "C" void load_platform(const sg4::Engine&) {
  std::istringstream text(std::getenv("RINGTRAIN_PLATFORM"));
  text >> stated.topology >> stated.nodes >> stated.message_gb_s >> stated.node_us >> stated.network_gb_s >>
      stated.network_us;
  const sg4::ClusterCallbacks callbacks(make_node);
  const auto shared = sg4::Link::SharingPolicy::SPLITDUPLEX;
  const double bandwidth = stated.network_gb_s * 1e9;
  const unsigned groups = (stated.nodes + 31) / 32;
  if (stated.nodes == 1) {
    sg4::NetZone* cluster = sg4::create_star_zone("cluster");
    make_node(cluster, {}, 0);
    cluster->seal();
  } else if (stated.topology == "fat_tree") {
    // A fat tree with leaf switches of 32 nodes. Each switch has 16 uplinks of two cables, so there are no bottlenecks.
    const unsigned leaf = std::min(stated.nodes, 32u);
    sg4::create_fatTree_zone("cluster", nullptr, {2, {leaf, groups}, {1, 16}, {1, 2}}, callbacks, bandwidth, 0, shared)
        ->seal();
  } else {
    // A dragonfly with groups of 4 chassis, each with 4 routers of 2 nodes.
    sg4::create_dragonfly_zone("cluster", nullptr, {{groups, 4}, {4, 4}, {4, 4}, 2}, callbacks, bandwidth, 0, shared)
        ->seal();
  }
}
