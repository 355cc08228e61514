//! Standard input that ends on SIGTERM or SIGINT.
//!
//! After a signal the data read so far is processed and flushed, as at the end of a file. A second signal exits at
//! once.
//!
//! A signal handler may do very little. It writes one byte to a socket, and each read polls the input and that
//! socket.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code after a second signal: 1, because input was left unprocessed.
const SECOND_SIGNAL_CODE: i32 = 1;

/// Standard input until a stop signal.
#[derive(Debug)]
pub(crate) struct StoppableInput {
    source: File,
    stop: UnixStream,
    stop_requested: Arc<AtomicBool>,
}

impl StoppableInput {
    /// Opens standard input and installs the signal handlers.
    pub(crate) fn stdin() -> io::Result<StoppableInput> {
        let source = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let (stop, signal_end) = UnixStream::pair()?;
        let stop_requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // Order matters: on the first signal the flag is still false, so it is set and the process goes on.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                SECOND_SIGNAL_CODE,
                Arc::clone(&stop_requested),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&stop_requested))?;
            signal_hook::low_level::pipe::register(signal, signal_end.try_clone()?)?;
        }
        Ok(StoppableInput { source, stop, stop_requested })
    }

    /// A function that tells whether a signal has arrived.
    pub(crate) fn stopped(&self) -> impl Fn() -> bool + use<> {
        let stop_requested = Arc::clone(&self.stop_requested);
        move || stop_requested.load(Ordering::Relaxed)
    }
}

impl Read for StoppableInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let awaited = PollFlags::IN;
            let mut waits = [PollFd::new(&self.stop, awaited), PollFd::new(&self.source, awaited)];
            wait(&mut waits)?;
            if !waits[0].revents().is_empty() {
                return Ok(0);
            }
            match self.source.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Writes all bytes, also to a non-blocking pipe.
pub(crate) fn write_all(mut to: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match io::Write::write(&mut to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => writable(to.as_fd())?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn writable(to: BorrowedFd<'_>) -> io::Result<()> {
    wait(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)])
}

fn wait(fds: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(|_| ()).map_err(Into::into),
        }
    }
}
