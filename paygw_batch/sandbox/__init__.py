"""The built-in gateway: checks requests by a second implementation, records orders, and misbehaves on demand."""
