"""The daemon through its own doors: grants, its end and its return, callers and tenants that mean harm."""
