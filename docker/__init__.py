"""The images: their Dockerfiles, and ``make images``."""
