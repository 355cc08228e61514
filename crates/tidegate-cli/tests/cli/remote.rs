//! The client commands against a real server.

mod decisions;
mod leases;
mod limits;
mod server_log;
mod test_server;
mod tokens;
mod unreachable_server;

pub(crate) use test_server::TestServer;
