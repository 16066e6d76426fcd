"""The recipes that configs, notebooks and studies use; a module is a family, and every recipe in it is in the table."""
