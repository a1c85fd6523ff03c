"""Saved skills in runs: which a program gets, who has reviewed them, and how they are saved."""
