"""The client that asked for a run: progress reports to it, and questions."""
