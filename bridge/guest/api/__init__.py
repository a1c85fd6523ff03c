"""What a program uses: tools, results, `runtime`, skills and memories, pictures, tracebacks."""
