"""Allocate and PreStartContainer: a pod's grant by way of the kubelet's device plugin interface."""
