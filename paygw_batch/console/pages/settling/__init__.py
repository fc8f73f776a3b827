"""Has the pages about rows after a payout: settled one by one, by a statement, or tried again; and their orders."""
