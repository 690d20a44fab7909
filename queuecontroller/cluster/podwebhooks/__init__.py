"""Plain pods that ask for shares, in a cluster: what is heard of them, and what is answered."""
