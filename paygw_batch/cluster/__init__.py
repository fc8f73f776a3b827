"""Operation on several hosts: a journal in PostgreSQL, the workers that share it, and the jobs that call them."""
