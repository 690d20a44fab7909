"""Which GPUs of which nodes a workload gets: a model of what is free, and the choice among it.

Pure: no I/O, no clock, integers only. `Stock` is fed by the nodes' reports and by what is held;
`place` answers for all pods of a workload or for none.
"""
