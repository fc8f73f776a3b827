"""The built-in gateway: checks requests independently, records orders, and simulates faults on demand."""
