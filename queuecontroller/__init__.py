"""The cluster-side controller: who may start, on which GPU share. Installable without the node
agent."""
