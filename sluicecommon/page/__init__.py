"""The page: what it shows as documents with revisions, who sees which, and the front end itself."""
