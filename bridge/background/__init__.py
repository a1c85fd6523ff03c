"""One background bridge for all clients of a user, and the small process that a client starts."""
