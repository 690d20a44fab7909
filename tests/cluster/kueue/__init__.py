"""The real Kueue, for what runs beside it or takes over from it."""
