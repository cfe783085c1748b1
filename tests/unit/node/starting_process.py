"""A process that starts another, and waits for it."""

import subprocess

if __name__ == "__main__":
    subprocess.run(["sleep", "60"], check=True)
