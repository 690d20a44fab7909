"""Who calls: connections, identities, and whose turn it is."""
