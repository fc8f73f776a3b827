"""Tests of the console: routes, roles, forms, headers, and stories in a browser."""
