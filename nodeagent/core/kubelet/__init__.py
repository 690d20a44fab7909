"""The kubelet's side: allocations, resources, limits of pods, and CDI as values."""
