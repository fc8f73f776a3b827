"""The built-in gateway: checks what it is sent by a second implementation, records it, and can be told to misbehave."""
