"""Kubernetes' API: a reflector that decides without I/O, and a thin client.

Nothing is imported here, so that a service without Kubernetes does not load an HTTP client. Import
the modules where they are needed (docs/decisions/queue/0014-kubernetes-client.md).
"""
