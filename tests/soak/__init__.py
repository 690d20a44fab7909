"""The node under random load and kills for as long as you like; `make soak` runs it."""
