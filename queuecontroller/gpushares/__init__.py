"""GPU shares in a cluster: admission of pods, devices of other vendors, claims of dynamic resource
allocation, and the scheduler extender."""
