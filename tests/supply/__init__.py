"""Supply chain of the build and the releases: by version, hash and signature."""
