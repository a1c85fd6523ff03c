"""Sessions: namespaces that outlive a run, each in a sandbox of its own."""
