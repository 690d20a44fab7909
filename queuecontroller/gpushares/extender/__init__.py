"""What a scheduler extender answers, out of what is known of GPUs: which nodes have room for a pod,
which of them suit it best, whom a pod of higher priority may displace, and which GPUs it gets.

Pure: no I/O, no clock. `wire` reads and writes kube-scheduler's documents, `pods` says what a pod
asks for, `ledger` who holds what, `verdicts` whether a node can take a pod and why not, `ranking`
which does best, `on_the_way` who is about to be bound, `victims` whom to displace; `answers` puts
them together.
"""
