"""The driver, the cards and what is read of them."""
