"""The composition root: settings become the parts of a run. What the commands and the Python API have in common."""
