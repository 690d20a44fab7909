"""DRA: allocation of claims, the book of prepared claims, and the node's ResourceSlices."""
