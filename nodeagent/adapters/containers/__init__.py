"""What programs and containers are given: our libraries, mounts, CDI files."""
