"""The database, and the key of the controller's seals."""
