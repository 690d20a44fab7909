"""Settings of the operator: frozen dataclasses over checked fields, a module for each
configuration."""
