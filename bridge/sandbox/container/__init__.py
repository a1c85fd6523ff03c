"""Sandboxes in containers, through the Docker Engine API of docker and podman."""
