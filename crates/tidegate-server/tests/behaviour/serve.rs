//! The listener: sockets, threads and timeouts, under load and under attack.
//!
//! Everything runs in this process over the loopback interface. No test sleeps for a fixed time: it waits for a reply, for the end of
//! a connection, or polls another connection until a condition holds.

mod connection_limits;
mod durability;
mod event_streams;
mod fixture;
mod flash_sale;
mod http2;
mod idle_connections;
mod malformed_input;
mod reload;
mod request_smuggling;
mod shutdown;
mod split_input;
mod timeouts;
