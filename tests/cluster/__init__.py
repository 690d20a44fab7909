"""A real Kubernetes on this machine, built from pinned modules: for `make cluster-up`, for `make test-cluster`, and without a
kubelet (`control_plane.py`) for tests of controllers."""
