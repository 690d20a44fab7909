"""Kubernetes' API: a reflector that decides without I/O, and a thin client around it.

Nothing is imported here: who runs without Kubernetes must not pay for an HTTP client. Import the
modules that are needed, where they are needed (docs/decisions/queue/0014-kubernetes-client.md).
"""
