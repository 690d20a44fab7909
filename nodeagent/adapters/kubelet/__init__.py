"""The kubelet and the API server: device plugin, records, allocations, pods."""
