//! A backend: every request is answered on a thread of its connection's own, by a script.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use std::sync::{Mutex, PoisonError};

use super::http_client::FAR_TOO_LONG;

/// What is done before a request is answered.
type Script = dyn Fn() + Send + Sync;

/// A server that answers `ok` to everything. It ends with its test.
pub(super) struct Backend {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

/// Who lets a backend that waits go on.
pub(super) struct Gate {
    arrivals: Receiver<()>,
    go: Sender<()>,
}

impl Gate {
    /// Waits until a request is at the backend.
    #[track_caller]
    pub(super) fn has_arrived(&self) {
        self.arrivals.recv_timeout(FAR_TOO_LONG).expect("a request is at the backend");
    }

    /// Lets one request be answered.
    pub(super) fn open(&self) {
        self.go.send(()).expect("the backend waits");
    }
}

impl Backend {
    /// One that answers at once.
    pub(super) fn quick() -> Backend {
        Backend::new(|| {})
    }

    /// One that answers when it is let.
    pub(super) fn gated() -> (Backend, Gate) {
        let (arrived, arrivals) = channel();
        let (go, may_go) = channel();
        let may_go = Mutex::new(may_go);
        let backend = Backend::new(move || {
            let _heard = arrived.send(());
            // Whoever is at the gate waits until it opens, or until the test is over.
            let _told = may_go.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAR_TOO_LONG);
        });
        (backend, Gate { arrivals, go })
    }

    fn new(script: impl Fn() + Send + Sync + 'static) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (script, counted, over): (Arc<Script>, _, _) =
            (Arc::new(script), Arc::clone(&requests), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (script, counted) = (Arc::clone(&script), Arc::clone(&counted));
                std::thread::spawn(move || answer(stream, &*script, &counted));
            }
        });
        Backend { address, requests, is_over }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many requests it has heard.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(self.address);
    }
}

/// Replies requests without bodies, until the connection ends.
fn answer(stream: TcpStream, script: &Script, counted: &AtomicUsize) {
    let _as_it_is = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        if line == "\r\n" {
            counted.fetch_add(1, Ordering::SeqCst);
            script();
            if stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
        line.clear();
    }
}
