"""``make release``: what is published, made from the commit alone, tried as a user would, and written to dist/."""
