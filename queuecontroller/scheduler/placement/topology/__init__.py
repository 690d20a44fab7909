"""Assignment of pods to domains of nodes by the levels of a Topology, for any resources. Pure."""
