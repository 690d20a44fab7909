"""Who waits, in the order of each ClusterQueue, and which cohort trees to look at again."""
