"""Search for nodes where room could be made, and for the victims that it takes."""
