"""Control worlds that ship."""
