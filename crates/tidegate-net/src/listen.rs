//! Listening sockets: one per worker, all at the same address.
//!
//! With `SO_REUSEPORT` the kernel spreads connections over the sockets, so no worker is woken for another's connection. The
//! drawback: a second process of the same user can bind the address without an error and receive half of the connections. So
//! the address is first bound without the option, which fails if it is in use.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections the kernel queues for a busy worker.
pub const BACKLOG: i32 = 4096;

/// Opens one socket per worker at this address. Port 0 selects a free port, the same for all.
pub fn listen(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    if address.port() != 0 {
        // Fails if another process listens bound.
        let exclusive = socket(address)?;
        exclusive.bind(&address.into())?;
        exclusive.listen(1)?;
    }
    let mut sockets: Vec<TcpListener> = Vec::with_capacity(workers);
    for _ in 0..workers.max(1) {
        let bound = sockets.first().map_or(Ok(address), TcpListener::local_addr)?;
        let shared = socket(address)?;
        shared.set_reuse_port(true)?;
        shared.bind(&bound.into())?;
        shared.listen(BACKLOG)?;
        sockets.push(shared.into());
    }
    Ok(sockets)
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a stopped server in TIME_WAIT must not block the address.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_an_address_and_a_second_listener_is_refused() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let sockets = listen(any, 3).expect("a free port");
        let bound = sockets[0].local_addr().expect("an address");
        assert!(sockets.iter().all(|socket| socket.local_addr().is_ok_and(|address| address == bound)));
        let error = listen(bound, 1).expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(sockets);
        listen(bound, 1).expect("it is free again");
    }
}
