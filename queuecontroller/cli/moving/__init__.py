"""From one queue to another."""
