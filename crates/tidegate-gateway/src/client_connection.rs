//! A connection of a client, and the admission of its requests.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::client_key::ClientKey;
use crate::config_snapshot::{ConfigSnapshot, RouteTarget};
use crate::limits::{ConnectionPermit, LimitLevel, LimitPlan, LimitRefusal};
use crate::local_reply::LocalReply;
use crate::wire::request_head::ForwardingInfo;
use crate::worker::GatewayWorker;

/// One connection of a client.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) worker: Arc<GatewayWorker>,
    /// The address of the client: the peer, or the source in its PROXY header.
    pub(crate) peer: IpAddr,
    /// Whether the connection uses TLS.
    pub(crate) is_secure: bool,
    /// The key of `peer`. Requests may name another client.
    key: ClientKey,
    permit: ConnectionPermit,
    /// The plan and client of the last admission. The next request skips route admission if both are the
    /// same.
    last_admitted: Mutex<Option<(Arc<LimitPlan>, ClientKey)>>,
}

/// The maximum number of clients that one connection may carry. A proxy's connection counts once per client
/// until it closes, so it is closed after this many.
const MAX_FORWARDED_CLIENTS: usize = 256;

/// The client of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestClient {
    /// The address of the client.
    pub(crate) address: IpAddr,
    /// The key under which the client is counted.
    pub(crate) key: ClientKey,
    /// Whether the client is a trusted proxy itself. Its connections belong to no single client.
    is_proxy: bool,
}

impl ClientConnection {
    pub(crate) fn new(
        worker: Arc<GatewayWorker>,
        peer: IpAddr,
        is_secure: bool,
        permit: ConnectionPermit,
    ) -> ClientConnection {
        let peer = peer.to_canonical();
        let key = ClientKey::of_address(peer);
        ClientConnection { worker, peer, is_secure, key, permit, last_admitted: Mutex::new(None) }
    }

    /// The information about the client that is forwarded to endpoints.
    pub(crate) fn forwarding_info(&self, config: &ConfigSnapshot) -> ForwardingInfo {
        ForwardingInfo {
            peer: self.peer,
            is_trusted: config.proxies.trusts(self.peer),
            is_secure: self.is_secure,
        }
    }

    /// Identifies the client from the values of `X-Forwarded-For` and from the header that names clients.
    pub(crate) fn identify<'h>(
        &self,
        config: &ConfigSnapshot,
        forwarded: impl DoubleEndedIterator<Item = &'h [u8]>,
        name: Option<&[u8]>,
    ) -> RequestClient {
        let address = config.proxies.client(self.peer, forwarded);
        let key = name.and_then(ClientKey::of_name);
        let by_address =
            || if address == self.peer { self.key.clone() } else { ClientKey::of_address(address) };
        let is_proxy = key.is_none() && config.proxies.trusts(address);
        RequestClient { address, key: key.unwrap_or_else(by_address), is_proxy }
    }

    /// Whether the connection has carried the maximum number of clients.
    pub(crate) fn has_reached_client_limit(&self) -> bool {
        self.permit.forwarded_clients() >= MAX_FORWARDED_CLIENTS
    }

    /// Whether the connection closes after this reply. A trusted proxy keeps its connection when one of its
    /// clients exceeds a limit.
    pub(crate) fn closes_after(&self, config: &ConfigSnapshot, answer: LocalReply) -> bool {
        let is_client_limit =
            matches!(answer, LocalReply::Refused(LimitRefusal { level: LimitLevel::Client, .. }));
        answer.ends_connection() && !(is_client_limit && config.proxies.trusts(self.peer))
    }

    /// Admits a request to a route: first its connection, then the request.
    pub(crate) fn admit(&self, target: &RouteTarget, client: &RequestClient) -> Result<(), LocalReply> {
        let limits = &self.worker.state.limits;
        let mut last_admitted = self.last_admitted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |(plan, key): &(Arc<LimitPlan>, ClientKey)| Arc::ptr_eq(plan, &target.plan) && *key == client.key;
        if !last_admitted.as_ref().is_some_and(is_same) {
            let (permit, plan) = (&self.permit, &target.plan);
            let answer = if client.is_proxy {
                limits.admit_to_route(permit, plan)
            } else {
                limits.admit_client_to_route(permit, plan, client.key.as_bytes())
            };
            answer.map_err(LocalReply::Refused)?;
            *last_admitted = Some((Arc::clone(&target.plan), client.key.clone()));
        }
        drop(last_admitted);
        limits.try_request(&target.plan, client.key.as_bytes()).map_err(LocalReply::Refused)
    }
}
