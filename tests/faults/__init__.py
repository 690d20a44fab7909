"""Every fault that was thought of beforehand, and what becomes of it: cases.py is the list."""
