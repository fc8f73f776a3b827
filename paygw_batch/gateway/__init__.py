"""The protocol as values: an instruction becomes signed bytes, a reply or a fault becomes an outcome."""
