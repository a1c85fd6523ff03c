"""Packages for programs: resolved on the host, kept by content, read in sandboxes."""
