"""TrainingJob and the Kubernetes objects around it as data: frozen, typed, pure."""
