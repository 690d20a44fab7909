"""Choice of the GPUs and nodes for a workload, on a model of what is free.

Pure: no I/O, no clock, integers only. `Stock` is updated by the nodes' reports and by what is held;
`place` places all pods of a workload or none.
"""
