"""Sessions: runs that share a sandbox, so that later programs see earlier variables."""
