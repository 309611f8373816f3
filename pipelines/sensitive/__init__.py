"""Secrets, personal data and local paths in texts: found, counted, and replaced."""
