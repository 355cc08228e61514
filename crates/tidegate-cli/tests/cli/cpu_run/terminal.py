"""A shell with job control on a terminal, and a governor in it: TIDEGATE STATE. Ends well if all is as it should be."""

import os
import pty
import select
import signal
import sys
import time

TIDEGATE, STATE = sys.argv[1:3]
PATIENCE = 30


class Shell:
    """A shell that somebody types into."""

    def __init__(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="READY ", TERM="dumb")
            os.execvp("sh", ["sh", "-i"])
        self.said = b""

    def type(self, text):
        os.write(self.terminal, text.encode())

    def hears(self, word):
        """Waits for a word, and forgets what was said up to it."""
        end = time.monotonic() + PATIENCE
        while word.encode() not in self.said:
            ready, _, _ = select.select([self.terminal], [], [], 0.2)
            if ready:
                self.said += os.read(self.terminal, 4096)
            if time.monotonic() > end:
                sys.exit(f"never heard {word!r}, only {self.said!r}")
        self.said = self.said.split(word.encode(), 1)[1]

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def governed(script):
    return f"{TIDEGATE} cpu run -q --state {STATE} --enforce signal --avg-limit 30 -- sh -c '{script}'\n"


shell = Shell()
shell.hears("READY ")

# Ctrl-C reaches the command, and its code comes back. Words are split, so that what is typed is not taken for what is said.
shell.type(governed('trap "echo interr""upted; exit 5" INT; echo run""ning; while :; do sleep 0.05; done'))
shell.hears("running")
shell.type("\x03")
shell.hears("interrupted")
shell.hears("READY ")
shell.type('echo code=$?"."\n')
shell.hears("code=5.")
shell.hears("READY ")

# Ctrl-Z stops it with its governor, the shell has the terminal, and both come back to the foreground and read from it.
shell.type(governed('echo wai""ting; read line; echo "got ""$line"; exit 6'))
shell.hears("waiting")
shell.type("\x1a")
shell.hears("READY ")
shell.type('echo shell""here\n')
shell.hears("shellhere")
shell.type("fg\n")
shell.type("tide\n")
shell.hears("got tide")
shell.hears("READY ")
shell.type('echo code=$?"."\n')
shell.hears("code=6.")
shell.hears("READY ")
shell.close()

# Without anybody who could continue it, Ctrl-Z stops nothing: the governor leads the session.
pid, terminal = pty.fork()
if pid == 0:
    script = 'echo run""ning; read line; exit 7'
    os.execv(TIDEGATE, [TIDEGATE, *"cpu run -q --enforce signal --state".split(), STATE, "--", "sh", "-c", script])
os.read(terminal, 7)
os.write(terminal, b"\x1a")
os.write(terminal, b"on\n")
_, status = os.waitpid(pid, os.WUNTRACED)
if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != 7:
    sys.exit(f"as the leader of a session it ended with {status:#x}")
