"""Nodes for pending GPU shares: requests that cluster autoscalers understand, and their removal."""
