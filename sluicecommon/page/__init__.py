"""The page: its documents with revisions, which user may see which, and its front end."""
