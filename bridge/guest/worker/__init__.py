"""The process that a program runs in, and its environment."""
