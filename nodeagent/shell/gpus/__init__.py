"""The GPUs of the last reading, and changes of their MIG geometry."""
