"""The pages about rows after a payout: settling one by one or by statement, retrying, and the orders for these."""
