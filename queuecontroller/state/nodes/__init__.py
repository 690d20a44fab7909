"""The nodes: their sessions, what they were told, and the room on them."""
