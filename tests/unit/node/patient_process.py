"""A process that records how often it is asked to end."""

import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.stdout.write("up\n")
    sys.stdout.flush()
    signal.sigwait([signal.SIGTERM])
    sys.stdout.write("asked\n")
    if signal.sigtimedwait([signal.SIGTERM], 1):
        sys.stdout.write("asked again\n")
