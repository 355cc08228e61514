//! A session: the protocol state of one connection.
//!
//! ```text
//!   feed(TG.ACQUIRE a, TG.ACQUIRE b, PING, TG.PEEK c, TG.AC…)
//!        └────────── one batch ───┘        └ a batch ┘ └ kept by the caller and fed again with more
//! ```
//!
//! The caller reads into a buffer, feeds all of it to the session, writes the output, and keeps the unconsumed rest in front of the
//! next read. A buffer of [`MAX_FRAME_BYTES`](super::frame::MAX_FRAME_BYTES) bytes always suffices.
//!
//! Replies keep the order of the commands. Decisions of a store with a log are encoded now and sent after the sync ([`DeferredReply`]). A
//! remote store makes the session stop at the first unanswered batch: nothing behind it is parsed until [`RespSession::resume`].

mod compact_batch;
mod connection_commands;
mod leases;

use std::sync::Arc;

use tidegate::model::{Intent, Timestamp};
use tidegate::reply::{Detail, OrderError, OrderReply, Outcome, Replies};
use tidegate::store::StoreReply;
use tidegate::store::{CompactReplies, Later, Lsn, Unavailable};

use super::batch::{BatchBuffers, BatchEntry};
use super::command::{self, CommandAccess, CommandError, CommandSpec, RespCommand};
use super::decision_reply::{DecisionWriter, ReplyFormat};
use super::deferred_reply::{DeferredReply, ReplySink};
use super::described_buckets::RESERVED_PREFIX;
use super::frame::{FrameError, FrameReader, Framing, RespFrame};
use super::frame_prefix::FramePrefixCache;
use super::grant_template::GrantTemplate;
use super::reply::{RespVersion, RespWriter};
use super::resp_service::RespService;
use crate::metrics::CutReason;
use crate::tokens::{Permissions, TokenHash};
use compact_batch::PipelineBatch;
use leases::write_renewal;

/// Output size at which feeding stops until it is written, so that a client that does not read cannot fill the memory.
pub const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// The error code for unauthenticated clients.
const NOAUTH: &str = "NOAUTH";

/// One connection.
#[derive(Debug)]
pub struct RespSession {
    service: Arc<RespService>,
    id: u64,
    protocol: RespVersion,
    permissions: Option<Permissions>,
    /// Hash of the token that the permissions come from.
    token_hash: Option<TokenHash>,
    /// Generation of the authenticator when the permissions were granted.
    generation: u64,
    name: Box<[u8]>,
    reader: FrameReader,
    /// Prefixes of frames that the client sends repeatedly.
    prefixes: FramePrefixCache,
    buffers: SessionBuffers,
    /// Commands whose decisions are pending in a remote store.
    pending: Vec<PendingCommand>,
    /// Invalid tokens since the last [`RespSession::take_failures`].
    failures: u32,
    counts: SessionCounts,
    state: SessionState,
    cut: Option<CutReason>,
}

/// Scratch space for the decisions of a batch and their replies. Shared between sessions by [`SessionBuffers::swap`], so that a
/// session does not keep the memory of its largest batch.
#[derive(Debug, Default)]
pub struct SessionBuffers {
    batch: BatchBuffers,
    replies: Option<Replies>,
    compact_replies: CompactReplies,
    grant_template: GrantTemplate,
}

impl SessionBuffers {
    /// Swaps this space with that of the session.
    pub fn swap(&mut self, session: &mut RespSession) {
        std::mem::swap(self, &mut session.buffers);
    }
}

/// A command that waits for a remote decision.
#[derive(Debug)]
struct PendingCommand {
    format: ReplyFormat,
    intent: Intent,
    limit_id: Box<str>,
    key: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Open,
    /// A store call is pending.
    Waiting,
    Closed,
}

/// The result of feeding input.
#[derive(Debug)]
pub struct FeedOutcome {
    /// Number of consumed bytes. The rest must be fed again with more input.
    pub consumed: usize,
    /// All output may be sent when the log is durable up to here; at once if `None`.
    pub durable: Option<Lsn>,
    /// Replies that wait for the log, in order. Other output may be sent when everything before it was sent.
    pub deferred: Vec<DeferredReply>,
    /// What to do after writing the output.
    pub then: FeedNext,
    /// What was processed, including replies of [`RespSession::resume`] before this call.
    pub counts: SessionCounts,
}

/// Counts for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionCounts {
    /// Processed commands.
    pub commands: u64,
    /// Granted acquires; peeks are not counted.
    pub granted: u64,
    /// Refused acquires.
    pub refused: u64,
    /// Invalid tokens, and commands of unauthenticated clients.
    pub failed_auths: u64,
}

impl std::ops::AddAssign for SessionCounts {
    fn add_assign(&mut self, more: SessionCounts) {
        self.commands += more.commands;
        self.granted += more.granted;
        self.refused += more.refused;
        self.failed_auths += more.failed_auths;
    }
}

impl SessionCounts {
    /// Counts an answered acquire and logs a refusal.
    fn record_order(
        &mut self,
        intent: Intent,
        key: &[u8],
        answer: Option<&Result<OrderReply, OrderError>>,
        service: &RespService,
    ) {
        let (Intent::Acquire, Some(Ok(answer))) = (intent, answer) else { return };
        match &answer.outcome {
            Outcome::Granted(_) => self.granted += 1,
            Outcome::Denied(denied) => {
                self.refused += 1;
                service.record_refusal(&denied.limit, denied.item, key, answer.at);
            }
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum FeedNext {
    /// Read more input.
    Read,
    /// Feed the rest again: the output limit is reached, or [`RespSession::take_failures`] should be checked.
    Feed,
    /// Wait for this call and pass the result to [`RespSession::resume`]; then feed the rest again.
    Wait(PendingStoreCall),
    /// Close the connection.
    Close,
}

/// A pending call to a remote store.
pub enum PendingStoreCall {
    /// The decisions of a batch.
    Decisions(Later<Replies>),
    /// Whether a lease was released.
    Release(Later<bool>),
    /// The new expiry of a lease.
    Renew(Later<Result<Option<Timestamp>, OrderError>>),
}

/// The result of a [`PendingStoreCall`].
#[derive(Debug)]
pub enum StoreCallResult {
    /// The decisions of a batch.
    Decisions(Result<Replies, Unavailable>),
    /// Whether a lease was released.
    Release(Result<bool, Unavailable>),
    /// The new expiry of a lease.
    Renew(Result<Result<Option<Timestamp>, OrderError>, Unavailable>),
}

impl PendingStoreCall {
    /// Waits for the result.
    pub async fn resolve(self) -> StoreCallResult {
        match self {
            PendingStoreCall::Decisions(later) => StoreCallResult::Decisions(later.await),
            PendingStoreCall::Release(later) => StoreCallResult::Release(later.await),
            PendingStoreCall::Renew(later) => StoreCallResult::Renew(later.await),
        }
    }
}

impl std::fmt::Debug for PendingStoreCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PendingStoreCall::Decisions(_) => "Decisions",
            PendingStoreCall::Release(_) => "Release",
            PendingStoreCall::Renew(_) => "Renew",
        })
    }
}

/// Why a session stops before all input is processed.
enum SessionStop {
    Wait(PendingStoreCall),
    Close,
}

impl RespSession {
    /// A new connection.
    pub fn new(service: Arc<RespService>) -> RespSession {
        RespSession {
            id: service.next_id(),
            generation: service.generation(),
            permissions: service.anonymous_permissions(),
            token_hash: None,
            service,
            protocol: RespVersion::default(),
            name: Box::default(),
            reader: FrameReader::default(),
            prefixes: FramePrefixCache::default(),
            buffers: SessionBuffers::default(),
            pending: Vec::new(),
            failures: 0,
            counts: SessionCounts::default(),
            state: SessionState::Open,
            cut: None,
        }
    }

    /// Why the session was ended, if the client's input caused it.
    pub fn cut(&self) -> Option<CutReason> {
        self.cut
    }

    /// The protocol version of the connection.
    pub fn protocol(&self) -> RespVersion {
        self.protocol
    }

    /// Takes the number of invalid tokens since the last call. The session stops at each, so that the caller can limit the client's
    /// address.
    pub fn take_failures(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    /// Processes `input` and appends replies to `output`. Consumes nothing while a store call is pending.
    pub fn feed(&mut self, input: &[u8], output: &mut Vec<u8>) -> FeedOutcome {
        self.refresh_permissions();
        let mut sink = ReplySink { output, deferred: Vec::new() };
        let (entries, bids) = self.buffers.batch.take();
        let mut batch = PipelineBatch::new(entries, bids);
        let (consumed, then) = match self.state {
            SessionState::Open => self.run(input, &mut batch, &mut sink),
            SessionState::Waiting => (0, FeedNext::Read),
            SessionState::Closed => (input.len(), FeedNext::Close),
        };
        self.buffers.batch.give_back(batch.into_buffers());
        self.state = match then {
            FeedNext::Close => SessionState::Closed,
            FeedNext::Wait(_) => SessionState::Waiting,
            _ => self.state,
        };
        let deferred = sink.deferred;
        let durable = deferred.iter().map(|reply| reply.lsn).max();
        FeedOutcome { consumed, durable, deferred, then, counts: std::mem::take(&mut self.counts) }
    }

    /// Renews the permissions if the authenticator has changed. The generation is read first: a change during the check is noticed by
    /// the next call.
    fn refresh_permissions(&mut self) {
        let generation = self.service.generation();
        if generation != self.generation {
            self.generation = generation;
            let permissions = self.service.reauthenticate(self.token_hash.as_ref());
            self.set_permissions(permissions);
        }
    }

    /// Sets the permissions. Cached prefixes were authorized by the old ones.
    fn set_permissions(&mut self, permissions: Option<Permissions>) {
        self.permissions = permissions;
        self.prefixes.clear();
    }

    /// Writes the replies of a finished store call. Afterwards the rest of the input is fed again.
    pub fn resume(&mut self, result: StoreCallResult, output: &mut Vec<u8>) {
        if self.state != SessionState::Waiting {
            return;
        }
        self.state = SessionState::Open;
        let pending = std::mem::take(&mut self.pending);
        let mut counts = self.counts;
        let mut writer = self.decision_writer(output);
        match result {
            StoreCallResult::Decisions(Ok(replies)) => {
                for (index, pending) in pending.iter().enumerate() {
                    counts.record_order(pending.intent, &pending.key, replies.get(index), &self.service);
                    writer.write_reply(&pending.format, &replies, index);
                }
                self.counts = counts;
            }
            StoreCallResult::Decisions(Err(error)) => {
                for pending in &pending {
                    let limit = self.service.store().get(&pending.limit_id);
                    match limit.filter(|limit| !limit.refuses_in_outage()) {
                        Some(_) => writer.write_outage_grant(),
                        None => writer.writer.error("UNAVAILABLE", &error),
                    }
                }
            }
            StoreCallResult::Release(Ok(released)) => writer.writer.integer(i64::from(released)),
            StoreCallResult::Renew(Ok(renewed)) => write_renewal(&mut writer, renewed),
            StoreCallResult::Release(Err(error)) | StoreCallResult::Renew(Err(error)) => {
                writer.writer.error("UNAVAILABLE", &error);
            }
        }
    }

    /// Processes frames; returns the number of consumed bytes and what to do next.
    fn run<'i>(
        &mut self,
        input: &'i [u8],
        batch: &mut PipelineBatch<'i>,
        sink: &mut ReplySink<'_>,
    ) -> (usize, FeedNext) {
        let mut consumed = 0;
        loop {
            consumed += self.read_compact(&input[consumed..], batch);
            if !batch.is_full() {
                let rest = &input[consumed..];
                let (length, framing) = match self.reader.read(rest) {
                    Ok(RespFrame::Whole { length, framing }) => (length, framing),
                    Ok(RespFrame::Blank { length }) => {
                        consumed += length;
                        continue;
                    }
                    Ok(RespFrame::Partial) => {
                        return (consumed, self.decide(batch, sink).unwrap_or(FeedNext::Read));
                    }
                    Err(fault) => {
                        let wait = self.decide(batch, sink);
                        if wait.is_none() {
                            self.writer(sink.output).error("ERR", fault);
                            self.cut = Some(fault.into());
                        }
                        return (consumed, wait.unwrap_or(FeedNext::Close));
                    }
                };
                match self.parse_command(rest, framing) {
                    Ok(ParsedCommand::Decision(entry)) => {
                        self.counts.commands += 1;
                        self.add_entry(entry, rest, framing, batch);
                    }
                    parsed => {
                        // Decide the batch before this command. If that has to wait, this frame is read again later.
                        if let Some(wait) = self.decide(batch, sink) {
                            return (consumed, wait);
                        }
                        self.counts.commands += 1;
                        match self.execute(parsed, rest, sink) {
                            None => {}
                            Some(SessionStop::Wait(awaited)) => {
                                return (consumed + length, FeedNext::Wait(awaited));
                            }
                            Some(SessionStop::Close) => return (consumed + length, FeedNext::Close),
                        }
                    }
                }
                consumed += length;
            }
            if batch.is_full()
                && let Some(wait) = self.decide(batch, sink)
            {
                return (consumed, wait);
            }
            if sink.output.len() >= MAX_OUTPUT_BYTES || self.failures > 0 {
                return (consumed, self.decide(batch, sink).unwrap_or(FeedNext::Feed));
            }
        }
    }

    /// Submits the batch and writes the replies, or returns the pending call.
    fn decide(&mut self, batch: &mut PipelineBatch<'_>, sink: &mut ReplySink<'_>) -> Option<FeedNext> {
        self.decide_compact(batch, sink);
        let entries = &mut batch.entries;
        if entries.is_empty() {
            return None;
        }
        let replies = self.buffers.replies.take().unwrap_or_else(|| Replies::new(Detail::Readings));
        let (replies, durable) = match self.buffers.batch.submit(entries, self.service.limiter(), replies) {
            StoreReply::Now(replies) => (replies, None),
            StoreReply::Durable(replies, lsn) => (replies, Some(lsn)),
            StoreReply::Later(later) => {
                let pending = |BatchEntry { format, intent, limit_id, key, .. }: BatchEntry<'_>| {
                    let (limit_id, key) = (limit_id.into(), key.into());
                    PendingCommand { format, intent, limit_id, key }
                };
                self.pending.extend(entries.drain(..).map(pending));
                return Some(FeedNext::Wait(PendingStoreCall::Decisions(later)));
            }
        };
        let mut counts = self.counts;
        let start = sink.output.len();
        let mut writer = self.decision_writer(sink.output);
        for (index, entry) in entries.iter().enumerate() {
            counts.record_order(entry.intent, entry.key, replies.get(index), &self.service);
            writer.write_reply(&entry.format, &replies, index);
        }
        sink.defer(start, entries.len(), durable);
        entries.clear();
        self.buffers.replies = Some(replies);
        self.counts = counts;
        None
    }

    /// Parses and authorizes the frame at the start of `rest`.
    fn parse_command<'i>(
        &self,
        rest: &'i [u8],
        framing: Framing,
    ) -> Result<ParsedCommand<'i>, (CommandError, Framing)> {
        let arguments = self.reader.arguments(rest);
        let Some(spec) = arguments.get(0).and_then(CommandSpec::named) else {
            return Err((command::unknown_command(&arguments), framing));
        };
        // Only an unknown inline command ends the connection: the peer does not speak RESP.
        let harmless = |mistake| (mistake, Framing::Array);
        self.check_access(spec).map_err(harmless)?;
        self.classify(spec.parse(&arguments).map_err(harmless)?).map_err(harmless)
    }

    fn check_access(&self, spec: &CommandSpec) -> Result<(), CommandError> {
        match (spec.access, &self.permissions) {
            (CommandAccess::Anonymous, _) | (CommandAccess::Authenticated, Some(_)) => Ok(()),
            (CommandAccess::Role(needed), Some(permissions)) if permissions.role >= needed => Ok(()),
            (CommandAccess::Role(_), Some(permissions)) => Err(CommandError {
                code: "NOPERM",
                text: format!(
                    "a token of role {} may not run the '{}' command",
                    permissions.role.word(),
                    spec.name
                )
                .into(),
            }),
            (_, None) => Err(CommandError { code: NOAUTH, text: "Authentication required.".into() }),
        }
    }

    /// Separates decisions, which are batched, from other commands.
    fn classify<'i>(&self, command: RespCommand<'i>) -> Result<ParsedCommand<'i>, CommandError> {
        let covers = |limit_id: &str| {
            self.permissions.as_ref().is_some_and(|permissions| permissions.covers(limit_id))
        };
        let outside = || CommandError { code: "NOPERM", text: "this token is for other limits".into() };
        Ok(match command {
            RespCommand::Decide(question) => {
                let limit_id = covers(question.limit_id).then_some(question.limit_id).ok_or_else(outside)?;
                ParsedCommand::Decision(BatchEntry {
                    format: ReplyFormat::Decision,
                    intent: question.intent,
                    limit_id,
                    key: question.key,
                    count: question.count,
                    request_id: question.request_id,
                })
            }
            RespCommand::Throttle(throttle) => {
                covers(RESERVED_PREFIX).then_some(()).ok_or_else(outside)?;
                let bucket = self.service.described_buckets().get_or_create(throttle.bucket);
                let bucket = bucket.map_err(|error| match self.service.limiter().store().outage() {
                    Some(why) => CommandError { code: "UNAVAILABLE", text: why.to_string().into() },
                    None => CommandError::err(error.to_string()),
                })?;
                ParsedCommand::Decision(BatchEntry {
                    format: ReplyFormat::Throttle(throttle.dialect, bucket),
                    intent: Intent::Acquire,
                    limit_id: "",
                    key: throttle.key,
                    count: throttle.quantity,
                    request_id: None,
                })
            }
            other => ParsedCommand::Other(other),
        })
    }

    /// Executes a command that is not a decision.
    fn execute(
        &mut self,
        parsed: Result<ParsedCommand<'_>, (CommandError, Framing)>,
        rest: &[u8],
        sink: &mut ReplySink<'_>,
    ) -> Option<SessionStop> {
        let command = match parsed {
            Ok(ParsedCommand::Other(command)) => command,
            Ok(ParsedCommand::Decision(_)) => return None,
            Err((mistake, framing)) => {
                self.counts.failed_auths += u64::from(mistake.code == NOAUTH);
                self.writer(sink.output).error(mistake.code, mistake.text);
                if framing == Framing::Array {
                    return None;
                }
                self.cut = Some(CutReason::Protocol);
                return Some(SessionStop::Close);
            }
        };
        let mut writer = self.writer(sink.output);
        match command {
            RespCommand::Decide(_) | RespCommand::Throttle(_) => {}
            RespCommand::Release { lease } => return self.release(lease, sink).map(SessionStop::Wait),
            RespCommand::Renew { lease, ttl } => return self.renew(lease, ttl, sink).map(SessionStop::Wait),
            RespCommand::Ping { message: None } => writer.simple("PONG"),
            RespCommand::Ping { message: Some(message) } | RespCommand::Echo { message } => {
                writer.bulk(message);
            }
            RespCommand::Hello(hello) => self.hello(&hello, sink),
            RespCommand::Auth { token } => self.auth(token, sink),
            RespCommand::Quit => {
                writer.simple("OK");
                return Some(SessionStop::Close);
            }
            RespCommand::Select { index: 0 } => writer.simple("OK"),
            RespCommand::Select { .. } => writer.error("ERR", "DB index is out of range"),
            RespCommand::Commands(query) => self.commands(query, rest, sink),
            RespCommand::Client(client) => self.client(client, sink),
            RespCommand::Info => writer.text(connection_commands::INFO),
        }
        None
    }

    fn writer<'o>(&self, output: &'o mut Vec<u8>) -> RespWriter<'o> {
        RespWriter::new(output, self.protocol)
    }

    fn decision_writer<'o>(&self, output: &'o mut Vec<u8>) -> DecisionWriter<'_, 'o> {
        DecisionWriter {
            writer: self.writer(output),
            tick: self.service.tick(),
            described_buckets: self.service.described_buckets(),
        }
    }
}

/// A parsed command: batched or executed in order.
enum ParsedCommand<'i> {
    Decision(BatchEntry<'i>),
    Other(RespCommand<'i>),
}

impl From<FrameError> for CutReason {
    fn from(fault: FrameError) -> CutReason {
        match fault {
            FrameError::FrameTooLarge | FrameError::InlineTooLong => CutReason::TooLarge,
            _ => CutReason::Protocol,
        }
    }
}
