"""The test cluster: a real Kubernetes of two nodes on one machine, in namespaces of its own."""
