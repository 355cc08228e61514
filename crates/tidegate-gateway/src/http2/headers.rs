//! The fields of requests and responses, as hyper has them.

use std::fmt::Write;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, REFERER, TE, USER_AGENT, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::request_log::Asked;
use crate::wire::header_fields::{Field, field, has_dots, is_host, words};
use crate::wire::request_head::{Forwarded, MOST_HOPS, hops};
use crate::wire::{Flaw, LONGEST_TARGET, MOST_FIELDS};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Which host and which path are meant.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) host: String,
    /// With its query.
    pub(super) path: String,
}

/// Finds out what is meant, if it is one thing.
pub(super) fn target(head: &Parts) -> Result<Target, Flaw> {
    const ODD_HOST: Flaw = Flaw::Bad("the host is not one");
    if head.headers.len() > MOST_FIELDS {
        return Err(Flaw::LargeHead);
    }
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(Flaw::Method);
    }
    if head.headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Flaw::Bad("there is more than one Content-Length"));
    }
    if head.uri.scheme().is_some_and(|scheme| !matches!(scheme.as_str(), "http" | "https")) {
        return Err(Flaw::Bad("the scheme is not HTTP's"));
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let sent = hosts.next().map(|host| host.to_str().map_err(|_| ODD_HOST)).transpose()?;
    let authority = head.uri.authority().map(http::uri::Authority::as_str);
    let host = match (authority, sent) {
        (Some(authority), Some(sent)) if !authority.eq_ignore_ascii_case(sent) => {
            return Err(Flaw::Bad("the authority and the Host are not the same"));
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) => return Err(Flaw::Bad("there is no Host")),
    };
    if hosts.next().is_some() {
        return Err(Flaw::Bad("there is more than one Host"));
    }
    if !is_host(host.as_bytes()) {
        return Err(ODD_HOST);
    }
    let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    if path.len() > LONGEST_TARGET {
        return Err(Flaw::LongTarget);
    }
    let is_all = path == "*" && head.method == Method::OPTIONS;
    if !(path.starts_with('/') || is_all) || path.contains('#') {
        return Err(Flaw::Bad("the target is neither a path nor an address"));
    }
    if has_dots(path.as_bytes()) {
        return Err(Flaw::Bad("the path has . or .. in it"));
    }
    if head.headers.get_all(VIA).iter().any(|via| hops(via.as_bytes()) >= MOST_HOPS) {
        return Err(Flaw::Bad("the request goes round in circles"));
    }
    Ok(Target { host: host.to_owned(), path: path.to_owned() })
}

/// Makes of a head that has come one that goes on.
pub(super) fn prepare(head: &mut Parts, target: &Target, about: &Forwarded, is_grpc: bool) {
    cleanse(&mut head.headers);
    head.headers.remove(EXPECT);
    if !about.is_trusted {
        remove(&mut head.headers, |field| {
            matches!(
                field,
                Field::ClaimedClient | Field::ForwardedFor | Field::ForwardedProto | Field::ForwardedHost
            )
        });
    }
    let mut through = String::new();
    for value in head.headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()) {
        through.push_str(value);
        through.push_str(", ");
    }
    let _never_fails = write!(through, "{}", about.peer);
    put(&mut head.headers, FORWARDED_FOR, &through);
    if !head.headers.contains_key(FORWARDED_PROTO) {
        put(&mut head.headers, FORWARDED_PROTO, if about.is_secure { "https" } else { "http" });
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

/// HTTP/2 has one field for each cookie; before it there is one for all.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Takes out what is for one hop only.
pub(super) fn cleanse(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| words(value.as_bytes()))
        .filter_map(|word| HeaderName::from_bytes(word).ok())
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    remove(headers, |field| {
        matches!(
            field,
            Field::Connection | Field::HopByHop | Field::Te | Field::TransferEncoding | Field::Upgrade
        )
    });
}

/// Takes out the fields that are this.
fn remove(headers: &mut HeaderMap, is_this: impl Fn(Field) -> bool) {
    let is_this = |name: &&HeaderName| is_this(field(name.as_str().as_bytes()));
    let known: Vec<HeaderName> = headers.keys().filter(is_this).cloned().collect();
    for name in known {
        headers.remove(name);
    }
}

/// What is told about a request when it is over.
#[derive(Debug)]
pub(super) struct Kept {
    method: Method,
    uri: Uri,
    host: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

impl Kept {
    pub(super) fn of(head: &Parts) -> Kept {
        let field = |name: HeaderName| head.headers.get(name).cloned();
        Kept {
            method: head.method.clone(),
            uri: head.uri.clone(),
            host: field(HOST),
            user_agent: field(USER_AGENT),
            referer: field(REFERER),
        }
    }

    pub(super) fn asked(&self) -> Asked<'_> {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        Asked {
            method: self.method.as_str(),
            host: self.uri.authority().map(http::uri::Authority::as_str).or(host).unwrap_or_default(),
            path: self.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: self.referer.as_ref().map(HeaderValue::as_bytes),
        }
    }
}
