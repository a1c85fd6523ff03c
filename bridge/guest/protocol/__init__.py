"""What host and guest must agree on: frames, and the text form of placeholders."""
