"""Data: tokenizers, shuffles without a table, and readers of files on disk."""
