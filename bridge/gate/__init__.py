"""The only way from a sandbox to the user's servers."""
