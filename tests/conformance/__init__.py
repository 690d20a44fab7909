"""Comparisons of Sluice with the documented behaviour of other projects, as data."""
