"""Leader election: the Lease, the replica that holds it, and what nodes reach through it."""
