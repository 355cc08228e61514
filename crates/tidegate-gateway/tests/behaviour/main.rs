//! What the gateway's rules do, seen from outside.

mod access_log;
mod cascades;
mod clients;
mod connections;
mod demonstrations;
mod endpoints;
mod hottest;
mod looking;
mod managing;
mod numbers;
mod over_sockets;
mod proxy_headers;
mod reloads;
mod requests;
mod routing;
mod settings;
mod stage;
