"""Reads a program's text before it runs: `parsing`, `survey` (one walk), then rules. Pure.

No module here executes the program.
"""
