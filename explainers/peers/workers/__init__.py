"""Workers: programs that run a peer in the peer's own environment, and their file protocol, `worker_protocol`.

A worker imports nothing of faithcheck, which is not installed there. Code that runs in this process belongs in
`faithcheck.explainers.peers`.
"""
