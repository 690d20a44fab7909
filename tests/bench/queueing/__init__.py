"""What the queue costs: its engine, its placement and its service."""
