"""Who uses GPUs around their grant, and what is done about it."""
