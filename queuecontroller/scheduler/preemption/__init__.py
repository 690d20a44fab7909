"""Choice of victims so that a pending workload fits: for quota, and for room on the nodes."""
