"""Documents of the node's page."""
