"""The journal in PostgreSQL under attack: crashes after any statement, freezes, lost connections, failovers."""
