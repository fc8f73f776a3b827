"""Pages for people who prepare, approve and follow payouts in a browser. Nothing here sends: a run is a process."""
