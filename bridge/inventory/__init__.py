"""The user's servers: their configuration, their tools, and changes of both."""
