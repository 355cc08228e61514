//! Sockets that listen: one per worker and door, all at the same address.
//!
//! The kernel spreads connections over the workers' sockets (`SO_REUSEPORT`), so that no worker wakes for another's. The price is
//! that a second server could take the same address without an error and half of the connections with it; so the address
//! is first taken alone, for a moment, which fails if anybody has it.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections the kernel may hold for a worker that is busy.
pub const BACKLOG: i32 = 4096;

/// As many sockets at this address as there are workers. Port 0 is any that is free, the same for all.
pub fn listen(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    if address.port() != 0 {
        // Nobody else may have it.
        let alone = socket(address)?;
        alone.bind(&address.into())?;
        alone.listen(1)?;
    }
    let mut sockets: Vec<TcpListener> = Vec::with_capacity(workers);
    for _ in 0..workers.max(1) {
        let here = sockets.first().map_or(Ok(address), TcpListener::local_addr)?;
        let shared = socket(address)?;
        shared.set_reuse_port(true)?;
        shared.bind(&here.into())?;
        shared.listen(BACKLOG)?;
        sockets.push(shared.into());
    }
    Ok(sockets)
}

/// Whether an error of accepting concerns only the one connection that was about to be accepted.
pub fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused)
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A server that was just stopped leaves connections behind that are over; they do not keep the address.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_an_address_that_nobody_else_can_take() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let sockets = listen(any, 3).expect("a free port");
        let here = sockets[0].local_addr().expect("an address");
        assert!(sockets.iter().all(|socket| socket.local_addr().is_ok_and(|address| address == here)));
        let error = listen(here, 1).expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(sockets);
        listen(here, 1).expect("it is free again");
    }
}
