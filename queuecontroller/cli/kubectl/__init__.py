"""`kubectl sluice`: Kueue's verbs over kubectl itself."""
