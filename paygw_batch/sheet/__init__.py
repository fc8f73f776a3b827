"""Files and rows: reading sheets as exact text, validating them against the rules, writing what they came to."""
