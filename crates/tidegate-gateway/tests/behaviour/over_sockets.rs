//! The gateway over real sockets: raw clients on the one side, scripted backends on the other.

mod bodies;
mod calls;
mod drain;
mod frames;
mod half_open;
mod limits;
mod probes;
mod proxied;
mod relaying;
mod reloads;
mod retries;
mod second;
mod slow;
mod smuggling;
mod splits;
mod stage;
mod tls;
mod upgrades;
mod wire;
