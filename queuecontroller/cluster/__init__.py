"""The queue in a cluster: Kueue's objects in the API server are what it reads and where it writes.

Pure are `kinds`, `world`, `mirror`, `workload_status`, `queue_status`, `telling` and `lease`: they
turn documents into steps of the book, and what the book decided into patches. `errands` repeats
what failed; `workload_writer`, `queue_writer` and `tending` carry out, `session` is one leader's
time, `controller` all of it. Nothing is imported here, as in `sluicecommon.kubernetes`.
"""
