//! A backend that handles every connection on its own thread.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use std::sync::{Mutex, PoisonError};

use super::http_client::TEST_TIMEOUT;

/// Runs before each response.
type RequestHook = dyn Fn() + Send + Sync;

/// A server that responds `ok` to every request until the test ends.
pub(super) struct TestBackend {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

/// Controls a gated backend.
pub(super) struct RequestGate {
    arrivals: Receiver<()>,
    go: Sender<()>,
}

impl RequestGate {
    /// Waits until a request has arrived.
    #[track_caller]
    pub(super) fn wait_for_request(&self) {
        self.arrivals.recv_timeout(TEST_TIMEOUT).expect("a request is at the backend");
    }

    /// Lets one request complete.
    pub(super) fn open(&self) {
        self.go.send(()).expect("the backend waits");
    }
}

impl TestBackend {
    /// A backend that responds at once.
    pub(super) fn immediate() -> TestBackend {
        TestBackend::new(|| {})
    }

    /// A backend that responds when the gate opens.
    pub(super) fn gated() -> (TestBackend, RequestGate) {
        let (arrived, arrivals) = channel();
        let (go, may_go) = channel();
        let may_go = Mutex::new(may_go);
        let backend = TestBackend::new(move || {
            let _heard = arrived.send(());
            // Wait until the gate opens or the test ends.
            let _told = may_go.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(TEST_TIMEOUT);
        });
        (backend, RequestGate { arrivals, go })
    }

    fn new(hook: impl Fn() + Send + Sync + 'static) -> TestBackend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (hook, counted, over): (Arc<RequestHook>, _, _) =
            (Arc::new(hook), Arc::clone(&requests), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (hook, counted) = (Arc::clone(&hook), Arc::clone(&counted));
                std::thread::spawn(move || answer(stream, &*hook, &counted));
            }
        });
        TestBackend { address, requests, is_over }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of received requests.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for TestBackend {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(self.address);
    }
}

/// Responds to requests without bodies until the connection closes.
fn answer(stream: TcpStream, hook: &RequestHook, counted: &AtomicUsize) {
    let _as_it_is = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        if line == "\r\n" {
            counted.fetch_add(1, Ordering::SeqCst);
            hook();
            if stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
        line.clear();
    }
}
