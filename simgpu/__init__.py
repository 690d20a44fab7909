"""The simulated GPU: a driver and an NVML without a card. Only its tests are Python packages."""
