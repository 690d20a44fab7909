"""Scheduler extender: decides which nodes have room for a pod, which suit it best, which pods a pod
of higher priority may preempt, and which GPUs it gets.

Pure: no I/O, no clock. `wire` parses and writes kube-scheduler's documents, `pods` parses a pod's
request, `ledger` records the holders of GPUs, `verdicts` decides whether a node can take a pod and
why not, `ranking` scores nodes, `nominated` tracks pods about to be bound, `victims` chooses
victims; `answers` puts them together.
"""
