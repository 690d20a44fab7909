"""What both services have in common, and what installs with either of them."""
