"""The thin shell: carries out what the core decides, through the ports, and feeds results back
as events."""
