"""One port of `nodeagent.ports` each; the only place that touches foreign libraries and the
kernel."""
