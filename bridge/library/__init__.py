"""What programs keep for later programs: skills and memories, as plain files."""
