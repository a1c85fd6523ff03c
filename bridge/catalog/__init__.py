"""Describes the tools of servers, finds tools by words, and reads programs. No I/O."""
