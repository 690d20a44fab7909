"""DRA as the kubelet and the API server speak it."""
