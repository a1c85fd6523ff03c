"""What the host and a guest must agree on: frames, and how placeholders are written."""
