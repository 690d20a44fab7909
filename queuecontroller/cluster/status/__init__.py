"""Status, events and visibility API: built from the book, no I/O."""
