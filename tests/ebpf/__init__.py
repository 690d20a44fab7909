"""The programs of nodeagent/bpf in this machine's kernel, for real; needs root."""
