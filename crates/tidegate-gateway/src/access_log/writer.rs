//! The writer of the access log.
//!
//! ```text
//!   worker ──▶ buffer ──▶ queue of at most 256 buffers ──▶ one thread ──▶ writer
//! ```
//!
//! Each worker appends lines to its own buffer. It sends the buffer when it is full, or every 100 ms.
//! A slow reader of the log never blocks a request: while the queue is full, buffers are dropped and their lines counted.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::access_log::{AccessLogEntry, AccessLogFormat};
use crate::metrics::WorkerCounters;

/// The maximum number of queued buffers.
const MAX_QUEUED_BUFFERS: usize = 256;
/// The size at which a buffer is sent.
const BUFFER_BYTES: usize = 32 * 1024;

/// A message to the writer thread.
enum WriterMessage {
    /// Lines to write, their number, and the counters for lines that cannot be written.
    Lines(Vec<u8>, u64, Arc<WorkerCounters>),
    /// Replies once everything sent before is written.
    Flush(SyncSender<()>),
}

/// A handle to the writer thread. Clones share the thread.
#[derive(Clone)]
pub struct AccessLogWriter {
    format: AccessLogFormat,
    messages: SyncSender<WriterMessage>,
    lost: Arc<AtomicU64>,
}

impl AccessLogWriter {
    /// Starts a thread that writes all lines to `to`.
    pub fn start(to: impl Write + Send + 'static, format: AccessLogFormat) -> io::Result<AccessLogWriter> {
        let (messages, received) = sync_channel(MAX_QUEUED_BUFFERS);
        let lost: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || write_messages(&received, to, &counted))?;
        Ok(AccessLogWriter { format, messages, lost })
    }

    /// The number of lines lost because the queue was full or a write failed.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything sent so far is written, but at most this long.
    pub fn finish(&self, at_most: Duration) {
        let (flushed, done) = sync_channel(1);
        let messages = self.messages.clone();
        // The queue may stay full if nothing reads the log, so the message is sent from another thread.
        let sender = std::thread::Builder::new().spawn(move || {
            let _best_effort = messages.send(WriterMessage::Flush(flushed));
        });
        if sender.is_ok() {
            let _in_time = done.recv_timeout(at_most);
        }
    }
}

impl fmt::Debug for AccessLogWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLogWriter").field("format", &self.format).finish_non_exhaustive()
    }
}

fn write_messages(messages: &Receiver<WriterMessage>, mut to: impl Write, lost: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        match message {
            WriterMessage::Lines(page, count, metrics) => {
                if to.write_all(&page).and_then(|()| to.flush()).is_err() {
                    // The write may have been partial. Count all of its lines.
                    lost.fetch_add(count, Ordering::Relaxed);
                    metrics.count_lost_lines(count);
                }
            }
            WriterMessage::Flush(flushed) => {
                // The waiting side may have timed out.
                let _best_effort = flushed.try_send(());
            }
        }
    }
}

/// The lines of one worker that are not sent yet.
#[derive(Debug)]
pub(crate) struct AccessLogBuffer {
    access_log: AccessLogWriter,
    metrics: Arc<WorkerCounters>,
    lines: Mutex<BufferedLines>,
}

#[derive(Debug, Default)]
struct BufferedLines {
    text: Vec<u8>,
    count: u64,
}

impl AccessLogBuffer {
    pub(crate) fn new(access_log: AccessLogWriter, metrics: Arc<WorkerCounters>) -> AccessLogBuffer {
        AccessLogBuffer { access_log, metrics, lines: Mutex::default() }
    }

    /// Appends a line.
    pub(crate) fn write(&self, entry: &AccessLogEntry<'_>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        entry.write(self.access_log.format, &mut lines.text);
        lines.count += 1;
        if lines.text.len() >= BUFFER_BYTES {
            self.send(&mut lines);
        }
    }

    /// Sends the buffered lines.
    pub(crate) fn flush(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.count > 0 {
            self.send(&mut lines);
        }
    }

    fn send(&self, lines: &mut BufferedLines) {
        let BufferedLines { text, count } = std::mem::take(lines);
        let page = WriterMessage::Lines(text, count, Arc::clone(&self.metrics));
        if self.access_log.messages.try_send(page).is_err() {
            self.access_log.lost.fetch_add(count, Ordering::Relaxed);
            self.metrics.count_lost_lines(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::mpsc::channel;

    use super::*;

    fn entry() -> AccessLogEntry<'static> {
        AccessLogEntry {
            at: Duration::ZERO,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            client_name: None,
            method: "GET",
            host: "a",
            path: "/",
            protocol: "HTTP/1.1",
            status: 200,
            sent_bytes: 0,
            received_bytes: 0,
            took: Duration::ZERO,
            route: None,
            backend: None,
            endpoint: None,
            retries: 0,
            refused: None,
            why: None,
            user_agent: None,
            referer: None,
        }
    }

    /// A writer that blocks until the test allows a write.
    struct BlockingWriter {
        permits: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for BlockingWriter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let _result = self.permits.recv();
            self.written.lock().expect("no panic").extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer whose reader is gone.
    struct BrokenWriter;

    impl Write for BrokenWriter {
        fn write(&mut self, _text: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unwritable_lines_are_counted_as_lost() {
        let access_log = AccessLogWriter::start(BrokenWriter, AccessLogFormat::Text).expect("a thread");
        let page = AccessLogBuffer::new(access_log.clone(), crate::metrics::GatewayMetrics::new(1).worker(0));
        for _ in 0..3 {
            page.write(&entry());
            page.write(&entry());
            page.flush();
        }
        access_log.finish(Duration::from_secs(60));
        assert_eq!(access_log.lost(), 6);
    }

    #[test]
    fn blocked_reader_does_not_block_writers_and_lost_lines_are_counted() {
        let (allow, permits) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = BlockingWriter { permits, written: Arc::clone(&written) };
        let access_log = AccessLogWriter::start(to, AccessLogFormat::Text).expect("a thread");
        let page = AccessLogBuffer::new(access_log.clone(), crate::metrics::GatewayMetrics::new(1).worker(0));
        let sent = MAX_QUEUED_BUFFERS as u64 + 10;
        for _ in 0..sent {
            page.write(&entry());
            page.flush();
        }
        assert!(access_log.lost() >= 9, "{}", access_log.lost());
        drop(allow);
        access_log.finish(Duration::from_secs(60));
        let lines = written.lock().expect("no panic").split(|byte| *byte == b'\n').count() as u64 - 1;
        assert_eq!(lines + access_log.lost(), sent);
    }
}
