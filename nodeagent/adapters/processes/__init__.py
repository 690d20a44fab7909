"""Processes and cgroups: identities, facts, and how they are frozen or ended."""
