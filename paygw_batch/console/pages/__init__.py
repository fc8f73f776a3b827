"""The pages of the console. Each handler answers one kind of request."""
