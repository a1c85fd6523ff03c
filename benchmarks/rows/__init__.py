"""How the rows are measured, a module for each kind of question."""
