"""The verbs of `sluice-queue`, a module each; `queuecontroller.cli.main` imports only the one that
runs."""
