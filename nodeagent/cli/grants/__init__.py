"""Commands about grants: run, resize, pause, ps, top, trace."""
