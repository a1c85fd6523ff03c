"""Plans: stored sets of held calls, and their execution after one approval."""
