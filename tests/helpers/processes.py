"""Running Python in another process, without the environment variables of pytest."""

import os
import subprocess
import sys
from pathlib import Path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a folder, print its output and return it; the exit code may be any."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    print(done.stdout, done.stderr)
    return done
