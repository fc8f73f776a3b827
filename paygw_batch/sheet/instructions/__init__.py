"""Makes instructions, order ids and the batch id from valid rows."""
