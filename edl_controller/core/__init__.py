"""PURE: everything that decides. Frozen values and `now` in, actions and plans out."""
