"""The commands of the app, one a module."""
