"""`sluice selftest`: tries the interposer and a grant."""
