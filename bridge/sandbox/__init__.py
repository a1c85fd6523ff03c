"""Where code runs: backends behind one Protocol, and how a run's end is classified."""
