"""The cluster-side controller: queueing, quota and placement of GPU shares. Installable without the
node agent."""
