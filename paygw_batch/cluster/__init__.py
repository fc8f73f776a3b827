"""Several hosts: a journal in PostgreSQL, the workers that share it, and the jobs that call the workers."""
