"""Annotations of jobs and pods that affect their admission: topologies, and gates."""
