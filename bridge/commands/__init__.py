"""Command lines: parsed, confined and planned without a shell and without I/O."""
