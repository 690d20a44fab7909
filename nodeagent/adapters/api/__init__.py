"""The door of the daemon's socket: who comes in, how many of them, and how much each may ask."""
