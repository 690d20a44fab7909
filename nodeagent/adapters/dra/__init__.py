"""DRA's interfaces to the kubelet and the API server."""
