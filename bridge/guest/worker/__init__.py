"""The process that a program runs in, and what the program finds there."""
