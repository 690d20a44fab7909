"""The product in one piece, by scene: real processes over the simulated driver."""
