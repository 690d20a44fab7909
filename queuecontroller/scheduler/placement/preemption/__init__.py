"""Where room could be made on the nodes, and whose going that takes."""
