"""The docker and podman backend."""
