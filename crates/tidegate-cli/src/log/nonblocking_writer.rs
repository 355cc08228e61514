//! A writer that never makes anybody wait: lines go to a thread that writes them, and are dropped while too many are on their way.
//!
//! Whoever reads standard error may stop reading, and a pipe that is full makes whoever writes to it stand still. A server must not: losing
//! lines is better than losing requests. How many were lost is told as soon as somebody reads again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How many lines may be on their way.
const MAX_QUEUED_LINES: usize = 1024;

/// What is handed over.
#[derive(Debug)]
enum LogMessage {
    LogLine(Vec<u8>),
    /// Everything before this is written when this is told.
    Flush(SyncSender<()>),
}

/// Hands lines to the thread that writes them. Copies hand to the same.
#[derive(Debug, Clone)]
pub(super) struct NonblockingWriter {
    lines: SyncSender<LogMessage>,
    lost: Arc<AtomicU64>,
}

impl NonblockingWriter {
    /// Lines go to this writer, on a thread of its own.
    pub(super) fn over(to: impl Write + Send + 'static) -> io::Result<NonblockingWriter> {
        let (lines, received) = sync_channel(MAX_QUEUED_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let losses = Arc::clone(&lost);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write(&received, to, &losses))?;
        Ok(NonblockingWriter { lines, lost })
    }

    /// Waits until everything that was handed over is written, but not for long.
    pub(super) fn finish(&self, at_most: Duration) {
        let (tell, told) = sync_channel(1);
        if self.lines.try_send(LogMessage::Flush(tell)).is_ok() {
            let _in_time = told.recv_timeout(at_most);
        }
    }
}

/// One line, handed over when it is whole.
#[derive(Debug)]
pub(super) struct LogLine<'p> {
    writer: &'p NonblockingWriter,
    text: Vec<u8>,
}

impl<'w> MakeWriter<'w> for NonblockingWriter {
    type Writer = LogLine<'w>;

    fn make_writer(&'w self) -> LogLine<'w> {
        LogLine { writer: self, text: Vec::new() }
    }
}

impl Write for LogLine<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if self.writer.lines.try_send(LogMessage::LogLine(text)).is_err() {
            self.writer.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(lines: &Receiver<LogMessage>, mut to: impl Write, lost: &AtomicU64) {
    while let Ok(message) = lines.recv() {
        let line = match message {
            LogMessage::LogLine(line) => line,
            LogMessage::Flush(tell) => {
                // Whoever asked may have lost patience.
                let _heard = tell.try_send(());
                continue;
            }
        };
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _unheard = writeln!(to, "{missing} lines of the log were lost: nobody read them");
        }
        let _unheard = to.write_all(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A reader that reads when it is told to.
    struct BlockedWriter {
        may: Receiver<()>,
        written: std::sync::mpsc::Sender<String>,
    }

    impl Write for BlockedWriter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let _told = self.may.recv();
            let _heard = self.written.send(String::from_utf8_lossy(text).into_owned());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_writes_never_waits_and_what_was_lost_is_told() {
        let ((go, may), (written, read)) = (channel(), channel());
        let writer = NonblockingWriter::over(BlockedWriter { may, written }).expect("a thread");
        // Nobody reads, and all of this returns.
        for number in 0..MAX_QUEUED_LINES + 100 {
            write!(writer.make_writer(), "{number}").expect("it is only handed over");
        }
        // Now everything is read at once, to the end.
        drop(go);
        drop(writer);
        let told: String = read.iter().collect();
        assert!(told.contains("123456789"), "what was handed over in time is there: {told}");
        assert!(told.contains("lines of the log were lost"), "{told}");
    }
}
