"""JSON Schemas as Python parameters, signatures and types; validation of values."""
