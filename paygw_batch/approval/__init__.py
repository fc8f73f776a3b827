"""What people sign and approve: keys, signed documents, plans, orders, and the policy that counts them."""
