"""A program that knows nothing of edl but the sidecar's protocol, as one in any other language would be written."""
