"""The kubelet: allocations, extended resources, limits of pods, and CDI specifications as
values."""
