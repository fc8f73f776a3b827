"""Settings: the configuration file, the environment, and the user's directories."""
