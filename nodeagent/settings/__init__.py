"""What the operator may set: frozen dataclasses over checked fields, a module per configuration."""
