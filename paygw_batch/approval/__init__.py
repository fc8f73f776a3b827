"""Keys, signed documents, plans and orders that people sign, and the policy that counts their approvals."""
