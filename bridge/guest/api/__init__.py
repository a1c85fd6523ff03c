"""What a program calls: tools, results, `runtime`, skills, memories, display; and tracebacks."""
