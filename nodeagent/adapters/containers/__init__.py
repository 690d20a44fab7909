"""Files and mounts for programs and containers: our libraries, grants' mounts, CDI files."""
