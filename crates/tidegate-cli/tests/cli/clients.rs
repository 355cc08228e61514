//! Real clients against a real server: curl, redis-cli, redis-py, and a request generator.
//!
//! The tests are Python files in `tests/clients`, one per client; this module runs them. Each file starts its own
//! servers. `cargo xtask clients` installs the libraries; `cargo xtask test` does so itself.

use std::path::Path;
use std::process::{Command, Output};

use crate::Files;

/// Python with the client libraries, installed by xtask in Cargo's directory.
pub(crate) const PYTHON: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/clients/bin/python");

const HOW_TO_INSTALL: &str = "run `cargo xtask clients` once; `cargo xtask test` does so by itself";

/// Runs one file of `tests/clients`.
#[track_caller]
pub(crate) fn run_python_tests(file: &str) {
    assert!(Path::new(PYTHON).exists(), "the client libraries are not there: {HOW_TO_INSTALL}");
    for program in ["curl", "openssl", "redis-cli"] {
        let there = Command::new(program).arg("--version").output();
        assert!(there.is_ok(), "{program} is not there: {HOW_TO_INSTALL}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let nowhere = Files::new();
    let Output { status, stdout, stderr } = Command::new(PYTHON)
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir"])
        .args([&folder, &folder.join(file)])
        .current_dir(nowhere.path(""))
        .env("TIDEGATE_BINARY", env!("CARGO_BIN_EXE_tidegate"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Plugins of the installed libraries are not needed.
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env_remove("PYTEST_ADDOPTS")
        .output()
        .expect("Python starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{file}\n{}{}", text(&stdout), text(&stderr));
}

#[test]
fn curl_tests_pass() {
    run_python_tests("test_curl.py");
}

#[test]
fn redis_cli_tests_pass() {
    run_python_tests("test_redis_cli.py");
}

#[test]
fn redis_py_tests_pass() {
    run_python_tests("test_redis_py.py");
}

#[test]
fn openapi_schema_tests_pass() {
    run_python_tests("test_schema.py");
}
