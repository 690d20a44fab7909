"""Readers around pods that ask for shares."""
