"""How people learn of it: the plugin of pytest, the results document, the commands and the pages."""

import time

STARTED = time.time()
"""When this process began to import faithcheck: it may have loaded an older content of what has changed since."""
