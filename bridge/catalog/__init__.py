"""What can the user's servers do? Names, signatures, documentation, search. No I/O."""
