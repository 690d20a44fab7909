"""The desk for the kubelet, and what a node does for Kubernetes beside it."""
