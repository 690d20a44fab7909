"""The kubelet and the API server: device plugin, the kubelet's records, allocations, pods."""
