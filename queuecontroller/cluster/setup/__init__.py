"""Setup in a cluster: Kueue's Configuration, RBAC, webhooks, registration and preflight checks."""
