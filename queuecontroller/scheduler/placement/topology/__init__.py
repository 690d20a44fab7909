"""Pods into domains of nodes by the levels of a Topology, whatever they ask for. Pure."""
