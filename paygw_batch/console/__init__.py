"""Pages for people who prepare, approve and follow payouts in a browser. They send nothing: a run is a process."""
