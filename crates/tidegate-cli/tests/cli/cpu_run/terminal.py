"""Job control of a governor in a shell on a terminal. Arguments: TIDEGATE STATE. Exits with 0 on success."""

import os
import pty
import select
import signal
import sys
import time

TIDEGATE, STATE = sys.argv[1:3]
TIMEOUT = 30


class Shell:
    """An interactive shell."""

    def __init__(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="READY ", TERM="dumb")
            os.execvp("sh", ["sh", "-i"])
        self.output = b""

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, word):
        """Waits for a word and discards the output up to it."""
        end = time.monotonic() + TIMEOUT
        while word.encode() not in self.output:
            ready, _, _ = select.select([self.terminal], [], [], 0.2)
            if ready:
                self.output += os.read(self.terminal, 4096)
            if time.monotonic() > end:
                sys.exit(f"no {word!r} in the output {self.output!r}")
        self.output = self.output.split(word.encode(), 1)[1]

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def governed(script):
    return f"{TIDEGATE} cpu run -q --state {STATE} --enforce signal --avg-limit 30 -- sh -c '{script}'\n"


shell = Shell()
shell.wait_for("READY ")

# Ctrl-C reaches the command, and its exit code is returned. Words are split, so that the echo of input differs from output.
shell.type(governed('trap "echo interr""upted; exit 5" INT; echo run""ning; while :; do sleep 0.05; done'))
shell.wait_for("running")
shell.type("\x03")
shell.wait_for("interrupted")
shell.wait_for("READY ")
shell.type('echo code=$?"."\n')
shell.wait_for("code=5.")
shell.wait_for("READY ")

# Ctrl-Z stops command and governor, the shell gets the terminal, and `fg` brings both back.
shell.type(governed('echo wai""ting; read line; echo "got ""$line"; exit 6'))
shell.wait_for("waiting")
shell.type("\x1a")
shell.wait_for("READY ")
shell.type('echo shell""here\n')
shell.wait_for("shellhere")
shell.type("fg\n")
shell.type("tide\n")
shell.wait_for("got tide")
shell.wait_for("READY ")
shell.type('echo code=$?"."\n')
shell.wait_for("code=6.")
shell.wait_for("READY ")
shell.close()

# As session leader the governor has no parent that could continue it, so Ctrl-Z stops nothing.
pid, terminal = pty.fork()
if pid == 0:
    script = 'echo run""ning; read line; exit 7'
    os.execv(TIDEGATE, [TIDEGATE, *"cpu run -q --enforce signal --state".split(), STATE, "--", "sh", "-c", script])
os.read(terminal, 7)
os.write(terminal, b"\x1a")
os.write(terminal, b"on\n")
_, status = os.waitpid(pid, os.WUNTRACED)
if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != 7:
    sys.exit(f"as session leader it ended with {status:#x}")
