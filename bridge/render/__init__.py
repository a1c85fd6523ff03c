"""Renders results as text and as structured content. No I/O."""
