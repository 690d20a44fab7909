"""`kubectl sluice`: Kueue's verbs, carried out by kubectl itself."""
