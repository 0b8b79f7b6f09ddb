"""Handwritten digits, learnt by pservers and trainers that come and go: the example to copy (see README.md here)."""
