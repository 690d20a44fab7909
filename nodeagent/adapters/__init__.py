"""Adapters: one per port of `nodeagent.ports`, and the only code that calls foreign libraries and
the kernel.
"""
