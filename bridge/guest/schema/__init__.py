"""JSON Schemas as Python: parameters, signatures, types, and whether a value fits."""
