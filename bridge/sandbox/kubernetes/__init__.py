"""Kubernetes: sandboxes as pods of a cluster.

Imported only when it is the runtime: its client library takes a fifth of a second to import, and
comes with the extra `kubernetes`.
"""
