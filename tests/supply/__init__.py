"""What we build with and what we hand out: by version, hash and signature."""
