"""The node's session with the queue controller, and processes that wait for admission."""
