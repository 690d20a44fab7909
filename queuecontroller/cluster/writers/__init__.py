"""Writers of the book's decisions to the API server, and the work queue that they share."""
