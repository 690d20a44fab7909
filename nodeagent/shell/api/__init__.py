"""Handlers of the local API and of metric scrapes."""
