"""Submits sheets: comparison, findings, plan, approval, batch, sending and results."""
