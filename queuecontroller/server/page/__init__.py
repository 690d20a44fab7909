"""The queue's web page.

`documents`, `picture` and `questions` decide without I/O what the page shows; `backend`, `viewers`
and `what_if` serve it over HTTP with the rights of each viewer.
"""
