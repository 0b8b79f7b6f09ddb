"""Pods as they are: the images of this repository in real containers, on real kubelets (``make test-containers``)."""
