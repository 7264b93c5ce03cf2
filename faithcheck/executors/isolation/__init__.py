"""Running an explainer's code in processes of its own, so that what it does to its process reaches nobody else.

* `channel`: messages between the processes, as bounded JSON; nothing that comes back is unpickled.
* `server`: the process that forks workers, the supervisor that watches over each, and the worker.
* `worker`: what asks a worker, and starts the server.
* `isolated_checks`: the checks of each explainer in a worker.
"""
