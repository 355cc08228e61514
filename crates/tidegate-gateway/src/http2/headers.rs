//! Header handling of HTTP/2 requests and responses in hyper's types.

use std::fmt::Write;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, REFERER, TE, USER_AGENT, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::request_log::RequestSummary;
use crate::wire::header_fields::{HeaderField, classify_field, has_dot_segment, is_host, list_items};
use crate::wire::request_head::{ForwardingInfo, MAX_HOPS, count_hops};
use crate::wire::{MAX_FIELDS, MAX_TARGET_BYTES, WireError};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The host and path of a request.
#[derive(Debug)]
pub(super) struct RequestTarget {
    pub(super) host: String,
    /// The path with its query.
    pub(super) path: String,
}

/// Validates the request and returns its target.
pub(super) fn target(head: &Parts) -> Result<RequestTarget, WireError> {
    const ODD_HOST: WireError = WireError::Malformed("the host is not one");
    if head.headers.len() > MAX_FIELDS {
        return Err(WireError::HeadTooLarge);
    }
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(WireError::MethodNotAllowed);
    }
    if head.headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(WireError::Malformed("there is more than one Content-Length"));
    }
    if head.uri.scheme().is_some_and(|scheme| !matches!(scheme.as_str(), "http" | "https")) {
        return Err(WireError::Malformed("the scheme is not HTTP's"));
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let sent = hosts.next().map(|host| host.to_str().map_err(|_| ODD_HOST)).transpose()?;
    let authority = head.uri.authority().map(http::uri::Authority::as_str);
    let host = match (authority, sent) {
        (Some(authority), Some(sent)) if !authority.eq_ignore_ascii_case(sent) => {
            return Err(WireError::Malformed("the authority and the Host are not the same"));
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) => return Err(WireError::Malformed("there is no Host")),
    };
    if hosts.next().is_some() {
        return Err(WireError::Malformed("there is more than one Host"));
    }
    if !is_host(host.as_bytes()) {
        return Err(ODD_HOST);
    }
    let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    if path.len() > MAX_TARGET_BYTES {
        return Err(WireError::TargetTooLong);
    }
    let is_all = path == "*" && head.method == Method::OPTIONS;
    if !(path.starts_with('/') || is_all) || path.contains('#') {
        return Err(WireError::Malformed("the target is neither a path nor an address"));
    }
    if has_dot_segment(path.as_bytes()) {
        return Err(WireError::Malformed("the path has . or .. in it"));
    }
    if head.headers.get_all(VIA).iter().any(|via| count_hops(via.as_bytes()) >= MAX_HOPS) {
        return Err(WireError::Malformed("the request goes round in circles"));
    }
    Ok(RequestTarget { host: host.to_owned(), path: path.to_owned() })
}

/// Rewrites a received head for the endpoint.
pub(super) fn rewrite_for_upstream(
    head: &mut Parts,
    target: &RequestTarget,
    info: &ForwardingInfo,
    is_grpc: bool,
) {
    remove_hop_fields(&mut head.headers);
    head.headers.remove(EXPECT);
    if !info.is_trusted {
        remove(&mut head.headers, |field| {
            matches!(
                field,
                HeaderField::ClaimedClient
                    | HeaderField::ForwardedFor
                    | HeaderField::ForwardedProto
                    | HeaderField::ForwardedHost
            )
        });
    }
    let mut through = String::new();
    for value in head.headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()) {
        through.push_str(value);
        through.push_str(", ");
    }
    let _never_fails = write!(through, "{}", info.peer);
    put(&mut head.headers, FORWARDED_FOR, &through);
    if !head.headers.contains_key(FORWARDED_PROTO) {
        put(&mut head.headers, FORWARDED_PROTO, if info.is_secure { "https" } else { "http" });
    }
    if !head.headers.contains_key(FORWARDED_HOST) {
        put(&mut head.headers, FORWARDED_HOST, &target.host);
    }
    head.headers.append(VIA, HeaderValue::from_static("2 tidegate"));
    join_cookies(&mut head.headers);
    if is_grpc {
        head.headers.remove(HOST);
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
        head.version = Version::HTTP_2;
        let uri = Uri::builder().scheme("http").authority(&*target.host).path_and_query(&*target.path);
        head.uri = uri.build().unwrap_or_default();
    } else {
        put(&mut head.headers, HOST, &target.host);
        head.version = Version::HTTP_11;
        head.uri = target.path.parse().unwrap_or_default();
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// HTTP/2 may split cookies into several fields; HTTP/1 has one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Removes hop-by-hop fields.
pub(super) fn remove_hop_fields(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| list_items(value.as_bytes()))
        .filter_map(|word| HeaderName::from_bytes(word).ok())
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    remove(headers, |field| {
        matches!(
            field,
            HeaderField::Connection
                | HeaderField::HopByHop
                | HeaderField::Te
                | HeaderField::TransferEncoding
                | HeaderField::Upgrade
        )
    });
}

/// Removes all fields that match.
fn remove(headers: &mut HeaderMap, is_this: impl Fn(HeaderField) -> bool) {
    let is_this = |name: &&HeaderName| is_this(classify_field(name.as_str().as_bytes()));
    let known: Vec<HeaderName> = headers.keys().filter(is_this).cloned().collect();
    for name in known {
        headers.remove(name);
    }
}

/// The parts of a request head that the access log needs.
#[derive(Debug)]
pub(super) struct LoggedFields {
    method: Method,
    uri: Uri,
    host: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

impl LoggedFields {
    pub(super) fn from_head(head: &Parts) -> LoggedFields {
        let field = |name: HeaderName| head.headers.get(name).cloned();
        LoggedFields {
            method: head.method.clone(),
            uri: head.uri.clone(),
            host: field(HOST),
            user_agent: field(USER_AGENT),
            referer: field(REFERER),
        }
    }

    pub(super) fn summary(&self) -> RequestSummary<'_> {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        RequestSummary {
            method: self.method.as_str(),
            host: self.uri.authority().map(http::uri::Authority::as_str).or(host).unwrap_or_default(),
            path: self.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: self.referer.as_ref().map(HeaderValue::as_bytes),
        }
    }
}
