"""Shows results to people: reconciliation, totals, summary, next steps, pages, metrics."""
