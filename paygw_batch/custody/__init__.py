"""Signs with keys that cannot be copied: in a token, or in AWS KMS."""
