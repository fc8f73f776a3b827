"""Submits sheets: a sheet becomes a plan, a batch and a run (comparison, findings, approval, sending, results)."""
