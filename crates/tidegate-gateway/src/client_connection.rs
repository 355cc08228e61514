//! A guest: one connection of a client, and what its requests may do.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::ClientKey;
use crate::config_snapshot::{Site, Way};
use crate::limits::{Connection, Level, Plan, Refusal};
use crate::local_reply::Answer;
use crate::wire::request_head::Forwarded;
use crate::worker::Worker;

/// One connection of a client.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) worker: Arc<Worker>,
    /// Who is at the other end, as far as is known: the peer, or whom its PROXY header names.
    pub(crate) peer: IpAddr,
    /// Whether it speaks TLS.
    pub(crate) is_secure: bool,
    /// The client, if nobody says otherwise.
    key: ClientKey,
    connection: Connection,
    /// Where it was counted last and for whom, so that this need not be asked again.
    entered: Mutex<Option<(Arc<Plan>, ClientKey)>>,
}

/// The most clients that one connection carries, such as that of a proxy: it is counted for each until it closes, so it is told to close
/// after so many.
const MOST_CARRIED: usize = 256;

/// Who sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    /// Where the client is.
    pub(crate) address: IpAddr,
    /// Under which bytes it is counted.
    pub(crate) key: ClientKey,
    /// Whether it is a trusted proxy that speaks for nobody else: its connections are not one client's.
    is_proxy: bool,
}

impl Guest {
    pub(crate) fn new(worker: Arc<Worker>, peer: IpAddr, is_secure: bool, connection: Connection) -> Guest {
        let peer = peer.to_canonical();
        let key = ClientKey::of_address(peer);
        Guest { worker, peer, is_secure, key, connection, entered: Mutex::new(None) }
    }

    /// What is said about a request to those behind the gateway.
    pub(crate) fn forwarded(&self, site: &Site) -> Forwarded {
        Forwarded { peer: self.peer, is_trusted: site.clients.trusts(self.peer), is_secure: self.is_secure }
    }

    /// Who has sent a request with these values of `X-Forwarded-For`, and of the header that names clients.
    pub(crate) fn sender<'h>(
        &self,
        site: &Site,
        forwarded: impl DoubleEndedIterator<Item = &'h [u8]>,
        name: Option<&[u8]>,
    ) -> Sender {
        let address = site.clients.address(self.peer, forwarded);
        let key = name.and_then(ClientKey::of_name);
        let by_address =
            || if address == self.peer { self.key.clone() } else { ClientKey::of_address(address) };
        let is_proxy = key.is_none() && site.clients.trusts(address);
        Sender { address, key: key.unwrap_or_else(by_address), is_proxy }
    }

    /// Whether the connection has carried as many clients as one may.
    pub(crate) fn has_carried_enough(&self) -> bool {
        self.connection.carried() >= MOST_CARRIED
    }

    /// Whether a connection ends with an answer. One of a trusted proxy does not because one of its clients has too many.
    pub(crate) fn ends_with(&self, site: &Site, answer: Answer) -> bool {
        let is_a_clients = matches!(answer, Answer::Refused(Refusal { level: Level::Client, .. }));
        answer.ends_connection() && !(is_a_clients && site.clients.trusts(self.peer))
    }

    /// Whether a request may go this way: first its connection, then it itself.
    pub(crate) fn ask(&self, way: &Way, sender: &Sender) -> Result<(), Answer> {
        let limits = &self.worker.house.limits;
        let mut entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_here =
            |(plan, key): &(Arc<Plan>, ClientKey)| Arc::ptr_eq(plan, &way.plan) && *key == sender.key;
        if !entered.as_ref().is_some_and(is_here) {
            let (connection, plan) = (&self.connection, &way.plan);
            let answer = if sender.is_proxy {
                limits.enter(connection, plan)
            } else {
                limits.enter_as(connection, plan, sender.key.as_bytes())
            };
            answer.map_err(Answer::Refused)?;
            *entered = Some((Arc::clone(&way.plan), sender.key.clone()));
        }
        drop(entered);
        limits.try_request(&way.plan, sender.key.as_bytes()).map_err(Answer::Refused)
    }
}
