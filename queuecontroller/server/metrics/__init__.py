"""The controller's metrics: the catalogues, and their values at a scrape."""
