"""The queue as a controller of a cluster, against a real API server and etcd on this machine."""
