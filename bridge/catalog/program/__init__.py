"""The one reader of programs: one tree, one analysis of names, and rules on top of it."""
