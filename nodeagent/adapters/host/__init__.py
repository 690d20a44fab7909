"""This host: files, clocks, mounts, system figures, systemd."""
