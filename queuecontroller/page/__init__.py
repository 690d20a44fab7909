"""What the web page shows of the queue: pure documents, and the picture that keeps them true."""
