"""The daemon's socket: accepts and identifies callers, and limits connections and calls per
account.
"""
