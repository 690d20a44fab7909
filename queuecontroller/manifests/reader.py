"""The reader of manifests, by its old name."""

from queuecontroller.reader import (
    LEAST,
    MOST,
    ManifestError,
    Problem,
    Reader,
    read,
    shown,
)

__all__ = ["LEAST", "MOST", "ManifestError", "Problem", "Reader", "read", "shown"]
