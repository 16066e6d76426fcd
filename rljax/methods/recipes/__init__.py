"""The recipes of the collection; a module is a family, and every recipe in it is in the table."""
