"""State of the queue service, between the scheduler and the servers: applied objects, submissions
and node reports go in, decisions come out, and each decision is written before it is published."""
