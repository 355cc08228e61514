//! The landing page for browsers.
//!
//! It shows nothing about limits, so it needs no token. It has no scripts and loads nothing.

use std::sync::LazyLock;

use ::http::header::{CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use ::http::{HeaderValue, Response};
use bytes::Bytes;

use super::typed;

static PAGE: LazyLock<Bytes> =
    LazyLock::new(|| include_str!("index.html").replace("{version}", env!("CARGO_PKG_VERSION")).into());

/// Content security policy: the browser may only display the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";

/// The page.
pub(super) fn page() -> Response<Bytes> {
    let mut response = typed("text/html; charset=utf-8", PAGE.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
