"""Platform files of SimGrid: nodes with a stated network, in a fat tree or a dragonfly."""

HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="all" routing="Full">
  <cluster id="cluster" prefix="n" radical="0-{last}" suffix="" speed="100Gf" core="{cores}"
    bw="{network}GBps" lat="{latency}us" loopback_bw="{node}GBps" loopback_lat="{node_latency}us"
    {topology}/>
</zone></platform>
"""


# Each gives the topology's text, and how many links the path between two nodes mostly has.
def fat_tree(nodes):
    """Leaf switches of 32 nodes, each with 16 uplinks of two cables: no path is narrower than its nodes' own links."""
    leaf = min(nodes, 32)
    if nodes % leaf:
        raise SystemExit(f"error: {nodes} nodes do not fill leaf switches of 32: choose a multiple of 32 nodes")
    return f'topology="FAT_TREE" topo_parameters="2;{leaf},{max(1, nodes // leaf)};1,16;1,2"', 2 if nodes <= 32 else 4


def dragonfly(nodes):
    """Groups of 4 chassis with 4 routers of 2 nodes, as many groups as the nodes fill."""
    groups = -(-nodes // 32)
    if nodes % 32:
        raise SystemExit(f"error: {nodes} nodes do not fill groups of 32: choose a multiple of 32 nodes")
    return f'topology="DRAGONFLY" topo_parameters="{groups},4;4,4;4,4;2"', 5


TOPOLOGIES = {"fat_tree": fat_tree, "dragonfly": dragonfly}


def write(path, topology, nodes, ranks_per_node, links):
    """Writes PATH.xml and PATH.hosts. The latency of a message between nodes is shared out over the links of its path."""
    description, hops = TOPOLOGIES[topology](nodes)
    path.with_suffix(".xml").write_text(HEAD.format(
        last=nodes - 1, cores=ranks_per_node, network=links.network_gb_s, latency=links.network_us / hops,
        node=links.node_gb_s, node_latency=links.node_us, topology=description))
    path.with_suffix(".hosts").write_text("".join(f"n{rank // ranks_per_node}\n" for rank in range(nodes * ranks_per_node)))
