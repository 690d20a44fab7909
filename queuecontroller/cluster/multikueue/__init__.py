"""MultiKueue: jobs of this cluster, the manager, run in other clusters, the workers."""
