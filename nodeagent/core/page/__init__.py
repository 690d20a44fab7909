"""What the node's page shows."""
