"""What the user's servers can do, as values and texts; and reading programs. No I/O."""
