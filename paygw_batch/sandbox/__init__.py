"""The built-in gateway, which checks requests by a second implementation, records orders, and misbehaves on demand."""
