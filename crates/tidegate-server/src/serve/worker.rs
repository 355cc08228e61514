//! A worker: a thread with a runtime of its own, that accepts connections and answers them.
//!
//! Workers share the store and nothing else that is written often. A connection stays with the worker that accepted it, so what it
//! does needs no other thread to wake.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_net::listen::is_the_clients;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use super::coarse_clock::Beat;
use super::bounds::FAREWELL;
use super::connection_limit::Seat;
use super::reply_writer::part;
use super::busy_poll::Vigil;
use super::{House, http, no_room, resp};
use crate::metrics::{DoorName, WorkerMetrics};

/// How long a worker waits when the system has no more sockets to give.
const SHORTAGE: Duration = Duration::from_millis(50);

/// What the connections of one worker share.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) house: Arc<House>,
    pub(super) beat: Arc<Beat>,
    pub(super) counts: Arc<WorkerMetrics>,
    pub(super) vigil: Vigil,
    /// For how long things take; nothing is decided by it.
    pub(super) stopwatch: quanta::Clock,
}

impl Worker {
    /// Nanoseconds since `start`, which [`quanta::Clock::raw`] said.
    pub(super) fn since(&self, start: u64) -> u64 {
        self.stopwatch.delta_as_nanos(start, self.stopwatch.raw())
    }
}

/// What a worker listens on.
#[derive(Debug)]
pub(super) struct Ears {
    pub(super) http: Option<std::net::TcpListener>,
    pub(super) resp: Option<std::net::TcpListener>,
}

/// Works until the server ends and the last connection is over, or has had its time.
pub(super) fn work(house: Arc<House>, counts: Arc<WorkerMetrics>, ears: Ears) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (beat, vigil, stopwatch) = (Beat::new(), Vigil::default(), quanta::Clock::new());
        let worker = Arc::new(Worker { house, beat, counts, vigil, stopwatch });
        tokio::spawn(Arc::clone(&worker.beat).go());
        let http = ears.http.map(TcpListener::from_std).transpose()?;
        let resp = ears.resp.map(TcpListener::from_std).transpose()?;
        let doors = [(DoorName::Http, http), (DoorName::Resp, resp)];
        let accepting: Vec<_> = doors
            .into_iter()
            .filter_map(|(door, listener)| listener.map(|listener| (door, listener)))
            .map(|(door, listener)| tokio::spawn(accept(listener, door, Arc::clone(&worker))))
            .collect();
        for each in accepting {
            // It ends when it is told to; if it panicked, the other doors and workers go on.
            let _ended = each.await;
        }
        let drain = worker.house.bounds.drain;
        let _in_time = tokio::time::timeout(drain, worker.house.everybody_left()).await;
        Ok(())
    })
}

/// Lets in who comes, until the server ends.
async fn accept(listener: TcpListener, door: DoorName, worker: Arc<Worker>) {
    let ending = worker.house.ending.clone();
    let mut told = std::pin::pin!(ending.told());
    loop {
        let mut arrival = std::pin::pin!(listener.accept());
        let accepted = std::future::poll_fn(|cx| {
            if told.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            arrival.as_mut().poll(cx).map(Some)
        });
        match accepted.await {
            None => return,
            Some(Ok((stream, address))) => admit(stream, address, door, &worker),
            Some(Err(error)) if is_the_clients(&error) => {}
            Some(Err(error)) => {
                tracing::warn!(door = door.word(), %error, "cannot accept connections; trying again");
                tokio::time::sleep(SHORTAGE).await;
            }
        }
    }
}

fn admit(stream: TcpStream, address: SocketAddr, door: DoorName, worker: &Arc<Worker>) {
    // Replies are small and whole; waiting for more to say would only make them late.
    let _as_it_is = stream.set_nodelay(true);
    if let Some(seat) = worker.house.crowd.enter() {
        worker.counts.opened(door);
        tokio::spawn(attend(stream, address, door, Arc::clone(worker), seat));
        return;
    }
    worker.counts.refused_connection(door);
    if let Some(seat) = worker.house.turned_away.enter() {
        tokio::spawn(turn_away(stream, door, seat));
    }
}

async fn attend(stream: TcpStream, address: SocketAddr, door: DoorName, worker: Arc<Worker>, seat: Seat) {
    let attendance = Attendance { worker: Arc::clone(&worker), door, seat: Some(seat) };
    let over = match door {
        DoorName::Http => http::serve(stream, address.ip(), worker).await,
        DoorName::Resp => resp::serve(stream, address.ip(), worker).await,
    };
    if let Some(reason) = over.cut() {
        attendance.worker.counts.cut(door, reason);
    }
    tracing::debug!(door = door.word(), peer = %address, over = ?over, "connection over");
}

/// That somebody is here. However they leave, also by a panic, they are not counted any more.
struct Attendance {
    worker: Arc<Worker>,
    door: DoorName,
    seat: Option<Seat>,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.worker.counts.closed(self.door);
        // First the place is free, then others are told: they look how many are left.
        drop(self.seat.take());
        self.worker.house.somebody_left();
    }
}

/// Tells somebody for whom there is no room that this is so.
async fn turn_away(mut stream: TcpStream, door: DoorName, seat: Seat) {
    let told = tokio::time::timeout(FAREWELL, stream.write_all(no_room(door))).await;
    if matches!(told, Ok(Ok(()))) {
        part(stream).await;
    }
    drop(seat);
}
