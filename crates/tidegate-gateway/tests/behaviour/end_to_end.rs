//! The gateway over real sockets: raw clients on one side, scripted backends on the other.

mod bodies;
mod drain;
mod fixture;
mod fragmentation;
mod grpc;
mod half_open;
mod health_probes;
mod http1;
mod http2;
mod http2_frames;
mod http_client;
mod limits;
mod reloads;
mod retries;
mod smuggling;
mod timeouts;
mod tls;
mod trusted_proxies;
mod upgrades;
