//! The logbook: where the lines of the access log go.
//!
//! ```text
//!   worker ──▶ page ──▶ page ──▶ page ──▶ one thread ──▶ writer
//! ```
//!
//! A worker writes its lines on a page of its own, and hands it over when it is full or has lain for a moment. Nobody waits for whoever reads
//! the log: while too many pages are on their way, pages are lost, and their lines are counted.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::access_log::{Entry, Format};
use crate::metrics::WorkerNumbers;

/// How many pages may be on their way.
const MOST_PAGES: usize = 256;
/// How large a page becomes.
const PAGE: usize = 32 * 1024;

/// What is handed over.
enum Message {
    /// With how many lines it has, and who counts those that cannot be written.
    Page(Vec<u8>, u64, Arc<WorkerNumbers>),
    /// Everything before this is written when this is told.
    Told(SyncSender<()>),
}

/// Where the lines of the access log go. Copies go to the same place.
#[derive(Clone)]
pub struct Logbook {
    format: Format,
    pages: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl Logbook {
    /// Lines go to this writer, on a thread of its own.
    pub fn over(to: impl Write + Send + 'static, format: Format) -> io::Result<Logbook> {
        let (pages, received) = sync_channel(MOST_PAGES);
        let lost: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || write(&received, to, &counted))?;
        Ok(Logbook { format, pages, lost })
    }

    /// How many lines were lost because nobody read them, or because they could not be written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything that was handed over is written, but not for long.
    pub fn finish(&self, at_most: Duration) {
        let (tell, told) = sync_channel(1);
        let pages = self.pages.clone();
        // There may be no room for one more message until somebody reads, and they may never.
        let asking = std::thread::Builder::new().spawn(move || {
            let _heard = pages.send(Message::Told(tell));
        });
        if asking.is_ok() {
            let _in_time = told.recv_timeout(at_most);
        }
    }
}

impl fmt::Debug for Logbook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logbook").field("format", &self.format).finish_non_exhaustive()
    }
}

fn write(pages: &Receiver<Message>, mut to: impl Write, lost: &AtomicU64) {
    while let Ok(message) = pages.recv() {
        match message {
            Message::Page(page, count, numbers) => {
                if to.write_all(&page).and_then(|()| to.flush()).is_err() {
                    // Perhaps not all of them; nobody can tell.
                    lost.fetch_add(count, Ordering::Relaxed);
                    numbers.lost_lines(count);
                }
            }
            Message::Told(tell) => {
                // Whoever asked may have lost patience.
                let _heard = tell.try_send(());
            }
        }
    }
}

/// A worker's page.
#[derive(Debug)]
pub(crate) struct Page {
    logbook: Logbook,
    numbers: Arc<WorkerNumbers>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

impl Page {
    pub(crate) fn new(logbook: Logbook, numbers: Arc<WorkerNumbers>) -> Page {
        Page { logbook, numbers, lines: Mutex::default() }
    }

    /// Writes a line.
    pub(crate) fn write(&self, entry: &Entry<'_>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        entry.write(self.logbook.format, &mut lines.text);
        lines.count += 1;
        if lines.text.len() >= PAGE {
            self.turn(&mut lines);
        }
    }

    /// Hands over what was written.
    pub(crate) fn hand_over(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.count > 0 {
            self.turn(&mut lines);
        }
    }

    fn turn(&self, lines: &mut Lines) {
        let Lines { text, count } = std::mem::take(lines);
        let page = Message::Page(text, count, Arc::clone(&self.numbers));
        if self.logbook.pages.try_send(page).is_err() {
            self.logbook.lost.fetch_add(count, Ordering::Relaxed);
            self.numbers.lost_lines(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::mpsc::channel;

    use super::*;

    fn entry() -> Entry<'static> {
        Entry {
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

    /// A writer that writes when it is told to.
    struct Reluctant {
        may: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Reluctant {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let _told = self.may.recv();
            self.written.lock().expect("no panic").extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer whose reader is gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _text: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let logbook = Logbook::over(Gone, Format::Text).expect("a thread");
        let page = Page::new(logbook.clone(), crate::metrics::Numbers::new(1).worker(0));
        for _ in 0..3 {
            page.write(&entry());
            page.write(&entry());
            page.hand_over();
        }
        logbook.finish(Duration::from_secs(60));
        assert_eq!(logbook.lost(), 6);
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_lost_is_counted() {
        let (allow, may) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Reluctant { may, written: Arc::clone(&written) };
        let logbook = Logbook::over(to, Format::Text).expect("a thread");
        let page = Page::new(logbook.clone(), crate::metrics::Numbers::new(1).worker(0));
        let handed_over = MOST_PAGES as u64 + 10;
        for _ in 0..handed_over {
            page.write(&entry());
            page.hand_over();
        }
        assert!(logbook.lost() >= 9, "{}", logbook.lost());
        drop(allow);
        logbook.finish(Duration::from_secs(60));
        let lines = written.lock().expect("no panic").split(|byte| *byte == b'\n').count() as u64 - 1;
        assert_eq!(lines + logbook.lost(), handed_over);
    }
}
