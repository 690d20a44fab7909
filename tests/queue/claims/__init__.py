"""Claims, counted for quota."""
