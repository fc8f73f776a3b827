"""Pages on which people prepare, approve and follow payouts. They send nothing: runs are separate processes."""
