"""Kubernetes: sandboxes as pods of a cluster.

Its client library comes with the extra `kubernetes` and takes 0.2 s to import, so only the runtime
`kubernetes` imports this package.
"""
