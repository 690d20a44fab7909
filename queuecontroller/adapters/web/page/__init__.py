"""The page over HTTP: who looks, what they are told, what they may do."""
