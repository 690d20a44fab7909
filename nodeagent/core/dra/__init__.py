"""Claims of DRA: what they are allotted, what became of them, what is published for them."""
