//! Tests of the gateway through its public interface.

mod abusive_client;
mod access_log;
mod cascades;
mod clients;
mod connections;
mod end_to_end;
mod endpoints;
mod fixture;
mod hottest_clients;
mod limit_usage;
mod management_api;
mod metrics;
mod proxy_headers;
mod reloads;
mod requests;
mod route_table;
mod settings;
