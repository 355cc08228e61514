//! `tidegate gateway` end to end: the real binary, real sockets, real clients.
//!
//! The gateway crate tests protocol details. These tests cover settings files, processes and signals.

mod abusive_client;
mod access_log;
mod backend;
mod fixture;
mod http_client;
mod management_api;
mod many_connections;
mod reloads;
mod shutdown;
mod startup_errors;

use crate::clients::run_python_tests;

#[test]
fn curl_speaks_every_version_of_http_through_it() {
    run_python_tests("test_gateway_curl.py");
}

#[test]
fn httpx_has_many_calls_on_one_connection() {
    run_python_tests("test_gateway_http2.py");
}

#[test]
fn grpc_passes_in_every_direction() {
    run_python_tests("test_gateway_grpc.py");
}

#[test]
fn websockets_pass_until_their_close() {
    run_python_tests("test_gateway_websockets.py");
}
