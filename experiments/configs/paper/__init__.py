"""Gin finds an included file by its package, whatever the directory."""
