"""The project's migrations."""
