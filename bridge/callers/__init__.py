"""Who asked for a run: what they are told and asked while it goes on."""
