"""The shell around every cluster: informers, work queues, events, components. It decides nothing about training."""
