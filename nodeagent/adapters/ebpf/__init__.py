"""The kernel's watch: BPF programs in a child process, and their events."""
