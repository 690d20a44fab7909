"""What the driver can be told beside what it tells."""
