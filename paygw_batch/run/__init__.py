"""Use cases over ports: submit a sheet, resume a batch, reconcile it. The engine that sends stands here too."""
