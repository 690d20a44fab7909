"""What dynamic resource allocation (DRA) asks of a node and is told by it, as values and ports."""
