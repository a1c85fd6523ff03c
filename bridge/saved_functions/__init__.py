"""Skills and memories that programs save, and the reviews of skills."""
