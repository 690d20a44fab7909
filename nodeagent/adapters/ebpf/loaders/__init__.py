"""Loads the programs of nodeagent/bpf into this kernel, prebuilt or compiled by bcc."""
