"""The desk for claims of DRA, and what is published of the node's GPUs."""
