"""Loads the programs of nodeagent/bpf into this kernel, ahead-of-time or with bcc."""
