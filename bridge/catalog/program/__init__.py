"""Reads a program's text before it runs: `findings`, `survey` (one walk), then rules. Pure.

No module here executes the program.
"""
