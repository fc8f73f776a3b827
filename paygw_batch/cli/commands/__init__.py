"""One module for the commands of each task."""
