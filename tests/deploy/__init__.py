"""The manifests of `deploy/`: what they say, and what a real API server does with them."""
