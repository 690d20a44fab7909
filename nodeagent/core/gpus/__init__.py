"""GPUs: their health, how soon to read them, and how cards are cut into MIG instances."""
