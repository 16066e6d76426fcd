"""The language of config strings: ``parse`` reads calls to registered names, ``foreign`` translates other systems'."""
