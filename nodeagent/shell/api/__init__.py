"""What the local API and a scrape are answered."""
