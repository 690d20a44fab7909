"""Modules shared by both services and installed with either of them."""
