"""The pages: routes, roles, forms, headers; and stories in a browser."""
