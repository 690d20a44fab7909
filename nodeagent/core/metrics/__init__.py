"""The catalogue of metrics, what fills it, and the text that is scraped."""
