"""Workers of peers that run in an environment of their own: scripts, see `worker_protocol`."""
