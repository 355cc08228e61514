//! The commands that talk to a server, with a server that really runs.

mod decisions;
mod leases;
mod limits;
mod server_log;
mod unreachable_server;
mod test_server;
mod tokens;

pub(crate) use test_server::Serving;
