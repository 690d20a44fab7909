"""Jobs of every framework and under every policy, decided upon in a real API server."""
