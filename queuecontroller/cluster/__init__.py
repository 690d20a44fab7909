"""The queue in a cluster: Kueue's objects in the API server are what it reads and where it writes.

`cache`, `status` and `leader.lease` do no I/O: they turn documents into steps of the book, and what
the book decided into patches. The `reconcilers` and `writers` carry out, with a work queue that
retries what failed. A `session` is one leader's time; the `controller` holds everything together.
Nothing is imported here, as in `sluicecommon.kubernetes`.
"""
