"""Access to the console by passkey: invitations, new passkeys, signing in. Nothing here decides about money."""
