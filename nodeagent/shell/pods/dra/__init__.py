"""Prepares and unprepares ResourceClaims for the kubelet, and publishes the ResourceSlices."""
