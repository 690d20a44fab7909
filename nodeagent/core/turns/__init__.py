"""Time windows of the grants on each GPU."""
