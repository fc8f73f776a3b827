"""The built-in gateway: independently checks requests, records orders, and misbehaves on demand."""
