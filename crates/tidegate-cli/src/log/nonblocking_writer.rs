//! A log writer that never blocks. A thread writes the lines; lines are dropped while its queue is full.
//!
//! The reader of standard error may stop reading, and a write to a full pipe blocks. A server must rather lose log
//! lines than requests. The number of lost lines is logged once the pipe drains.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Capacity of the queue.
const MAX_QUEUED_LINES: usize = 1024;

/// A message to the writer thread.
#[derive(Debug)]
enum LogMessage {
    LogLine(Vec<u8>),
    /// Acknowledged once all earlier lines are written.
    Flush(SyncSender<()>),
}

/// Sends lines to the writer thread. Clones share the thread.
#[derive(Debug, Clone)]
pub(super) struct NonblockingWriter {
    lines: SyncSender<LogMessage>,
    lost: Arc<AtomicU64>,
}

impl NonblockingWriter {
    /// Starts a thread that writes to `to`.
    pub(super) fn over(to: impl Write + Send + 'static) -> io::Result<NonblockingWriter> {
        let (lines, received) = sync_channel(MAX_QUEUED_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let losses = Arc::clone(&lost);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write(&received, to, &losses))?;
        Ok(NonblockingWriter { lines, lost })
    }

    /// Waits until all queued lines are written, up to a time limit.
    pub(super) fn finish(&self, at_most: Duration) {
        let (acknowledge, acknowledged) = sync_channel(1);
        if self.lines.try_send(LogMessage::Flush(acknowledge)).is_ok() {
            let _in_time = acknowledged.recv_timeout(at_most);
        }
    }
}

/// One line, queued on drop.
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
            LogMessage::Flush(acknowledge) => {
                // The waiting side may have timed out.
                let _heard = acknowledge.try_send(());
                continue;
            }
        };
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _unheard = writeln!(to, "{missing} log lines were lost because standard error was not read");
        }
        let _unheard = to.write_all(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A writer that blocks until the test allows each write.
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
    fn blocked_output_drops_lines_and_reports_their_number() {
        let ((go, may), (written, read)) = (channel(), channel());
        let writer = NonblockingWriter::over(BlockedWriter { may, written }).expect("a thread");
        // The writer is blocked; nevertheless all of this returns.
        for number in 0..MAX_QUEUED_LINES + 100 {
            write!(writer.make_writer(), "{number}").expect("it is only handed over");
        }
        // From here on writes do not block.
        drop(go);
        drop(writer);
        let acknowledged: String = read.iter().collect();
        assert!(acknowledged.contains("123456789"), "queued lines are written: {acknowledged}");
        assert!(acknowledged.contains("log lines were lost"), "{acknowledged}");
    }
}
