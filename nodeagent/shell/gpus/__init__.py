"""GPUs as last read, and the desk that cuts them."""
