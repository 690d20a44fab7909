"""Commands about what is held, also without a daemon."""
