//! A connection to a door, and what is said on it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::target::{Door, Target};
use super::wire::{Ask, Reply, Wire, resp};
use crate::Failure;

/// How much is read at once.
const PIECE: usize = 16 << 10;
/// How long it may take to be connected.
const LONGEST_CONNECTING: Duration = Duration::from_secs(5);

/// Where a door is, how it is spoken with, and how long an answer may take.
#[derive(Debug, Clone)]
pub(super) struct Place {
    name: String,
    addresses: Vec<SocketAddr>,
    wire: Wire,
    /// What is said first on a RESP connection.
    token: Option<String>,
    patience: Duration,
}

impl Place {
    /// Finds out where it is.
    pub(super) fn find(target: &Target, token: Option<&str>, patience: Duration) -> Result<Place, Failure> {
        let unknown = |why: String| Failure::Unreachable(format!("cannot reach {target}: {why}"));
        let found =
            (&*target.host, target.port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let addresses: Vec<_> = found.collect();
        if addresses.is_empty() {
            return Err(unknown("nobody knows this host".to_owned()));
        }
        Ok(Place::at(target, addresses, token, patience))
    }

    /// A place whose addresses are known.
    pub(super) fn at(
        target: &Target,
        addresses: Vec<SocketAddr>,
        token: Option<&str>,
        patience: Duration,
    ) -> Place {
        let wire = Wire::of(target, token);
        let token = token.filter(|_| target.door == Door::Resp).map(str::to_owned);
        Place { name: target.to_string(), addresses, wire, token, patience }
    }

    /// Its name, in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
    }
}

/// A connection. Whatever goes wrong on it is told in words, and then it is of no more use.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    place: Place,
    out: Vec<u8>,
    /// What was read, and how much of it was understood.
    heard: Vec<u8>,
    understood: usize,
}

impl Line {
    /// Connects, and shows the token where that is done first.
    pub(super) async fn open(place: &Place) -> Result<Line, String> {
        let connecting =
            timeout(place.patience.min(LONGEST_CONNECTING), TcpStream::connect(&place.addresses[..]));
        let stream = connecting.await.map_err(|_| "no connection in time".to_owned())?;
        let stream = stream.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut line =
            Line { stream, place: place.clone(), out: Vec::new(), heard: Vec::new(), understood: 0 };
        if let Some(token) = line.place.token.clone() {
            match line.call(&["AUTH", &token], |value| format!("{value:?}")).await? {
                Ok(_) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(line)
    }

    /// Adds a question to those that are sent together.
    pub(super) fn ask(&mut self, ask: Ask<'_>) {
        self.place.wire.ask(&mut self.out, ask);
    }

    /// Sends what was added.
    pub(super) async fn send(&mut self) -> Result<(), String> {
        let sent = timeout(self.place.patience, self.stream.write_all(&self.out)).await;
        self.out.clear();
        sent.map_err(|_| self.too_late())?.map_err(|error| error.to_string())
    }

    /// The next reply.
    pub(super) async fn hear(&mut self) -> Result<Reply, String> {
        loop {
            if let Some((length, reply)) = self.place.wire.hear(&self.heard[self.understood..])? {
                self.understand(length);
                return Ok(reply);
            }
            self.read().await?;
        }
    }

    /// Says a RESP command alone and hears what comes of it; the inner error is the server's.
    pub(super) async fn call<T>(
        &mut self,
        words: &[&str],
        read: impl Fn(&resp::Value<'_>) -> T,
    ) -> Result<Result<T, String>, String> {
        resp::command(&mut self.out, words);
        self.send().await?;
        loop {
            if let Some((value, length)) = resp::value(&self.heard[self.understood..])? {
                let told = match &value {
                    resp::Value::Error(why) => Err(String::from_utf8_lossy(why).escape_debug().to_string()),
                    value => Ok(read(value)),
                };
                self.understand(length);
                return Ok(told);
            }
            self.read().await?;
        }
    }

    fn understand(&mut self, length: usize) {
        self.understood += length;
        if self.understood == self.heard.len() {
            self.heard.clear();
            self.understood = 0;
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        if self.understood > 0 {
            self.heard.drain(..self.understood);
            self.understood = 0;
        }
        self.heard.reserve(PIECE);
        let read = timeout(self.place.patience, self.stream.read_buf(&mut self.heard)).await;
        match read.map_err(|_| self.too_late())? {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn too_late(&self) -> String {
        format!("no answer within {}ms", self.place.patience.as_millis())
    }
}
