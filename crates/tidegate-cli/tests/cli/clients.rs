//! Real clients against the real server: curl, redis-cli, a client library of Redis, and a generator of requests.
//!
//! What they do is written in Python, in `tests/clients`, a file for each client; here they are only started. Each file starts servers
//! of its own. What they need, `cargo xtask clients` installs; `cargo xtask test` does so by itself.

use std::path::Path;
use std::process::{Command, Output};

use crate::Files;

/// The Python that knows the libraries. Cargo names the directory, xtask fills it.
pub(crate) const PYTHON: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/clients/bin/python");

const PREPARE: &str = "run `cargo xtask clients` once; `cargo xtask test` does so by itself";

/// Runs the tests in a file of `tests/clients`.
#[track_caller]
pub(crate) fn pass(file: &str) {
    assert!(Path::new(PYTHON).exists(), "the client libraries are not there: {PREPARE}");
    for program in ["curl", "openssl", "redis-cli"] {
        let there = Command::new(program).arg("--version").output();
        assert!(there.is_ok(), "{program} is not there: {PREPARE}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let nowhere = Files::new();
    let Output { status, stdout, stderr } = Command::new(PYTHON)
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir"])
        .args([&folder, &folder.join(file)])
        .current_dir(nowhere.path(""))
        .env("TIDEGATE_BINARY", env!("CARGO_BIN_EXE_tidegate"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // The libraries bring plugins for those who write tests with them; nobody does here.
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env_remove("PYTEST_ADDOPTS")
        .output()
        .expect("Python starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{file}\n{}{}", text(&stdout), text(&stderr));
}

#[test]
fn curl_makes_every_call_over_every_version_of_http() {
    pass("test_curl.py");
}

#[test]
fn redis_cli_asks_from_a_shell() {
    pass("test_redis_cli.py");
}

#[test]
fn redis_py_is_a_client_library() {
    pass("test_redis_py.py");
}

#[test]
fn whatever_the_openapi_document_allows_is_answered_as_it_says() {
    pass("test_schema.py");
}
