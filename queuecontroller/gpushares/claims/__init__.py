"""Claims of dynamic resource allocation, counted for quota: Kueue's `deviceClassMappings`."""
