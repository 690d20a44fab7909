"""Keeps grants real."""
