"""GPUs: their health, the pace of readings, and the MIG instances that cards are split into."""
