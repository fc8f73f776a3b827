"""Follows the runs that workers send."""
