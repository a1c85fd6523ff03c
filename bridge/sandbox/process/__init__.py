"""Running code in namespaces of this machine's own kernel: no daemon, no image."""
