"""The output, displayed items, files and state of a program, as its guest sends them.

The guest may be hostile: each part bounds what it keeps, and no frame can fail the run.
"""
