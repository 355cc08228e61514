//! A session: one connection, from its first byte to its last.
//!
//! ```text
//!   feed(TG.ACQUIRE a, TG.ACQUIRE b, PING, TG.PEEK c, TG.AC…)
//!        └────────── one batch ───┘        └ a batch ┘ └ is kept by the caller, and fed again with more
//! ```
//!
//! Whoever has the socket reads into a buffer, feeds the session with all of it, writes what came out, and keeps what was not
//! consumed in front of what is read next. A buffer of [`LARGEST_FRAME`](super::frame::LARGEST_FRAME) bytes is always enough.
//!
//! Everything is answered in order. What a store with a log has decided is said at once, and heard when it is durable ([`Pledge`]). A store that decides elsewhere makes a session stop at the first batch it has not been
//! answered: nothing behind it is looked at until [`Session::resume`].

mod compact_batch;
mod connection_commands;
mod leases;

use std::sync::Arc;

use tidegate::store::{CompactReplies, Later, Lsn, Unavailable};
use tidegate::{Answer, Detail, Intent, OrderError, Outcome, Replies, StoreReply, Timestamp};

use super::batch::{Entry, Room};
use super::command::{self, Command, Form, Leave, Mistake};
use super::decision_reply::{Due, Speaker};
use super::resp_service::Door;
use super::frame::{Fault, Frame, Framing, Reader};
use super::grant_template::Grants;
use super::frame_prefix::Openings;
use super::deferred_reply::{Mouth, Pledge};
use super::reply::{Protocol, Writer};
use super::described_buckets::RESERVED;
use crate::metrics::Cut;
use crate::tokens::{Pass, Shown};
use compact_batch::Gathered;
use leases::renewal;

/// How much may be said before some of it has to be written: who asks much and reads nothing must not fill the memory.
pub const LARGEST_OUTPUT: usize = 256 * 1024;

/// What somebody is told who has shown no token.
const NOAUTH: &str = "NOAUTH";

/// One connection.
#[derive(Debug)]
pub struct Session {
    door: Arc<Door>,
    id: u64,
    protocol: Protocol,
    pass: Option<Pass>,
    /// The token by which it has the pass, if it has shown one.
    shown: Option<Shown>,
    /// How things stood at the door when it got the pass.
    generation: u64,
    name: Box<[u8]>,
    reader: Reader,
    /// How the frames begin that it sends again and again.
    openings: Openings,
    workroom: Workroom,
    /// Whom the answers belong to that somebody else is deciding.
    owed: Vec<Owed>,
    /// How many tokens were shown that nobody knows, and that nobody was told of.
    failures: u32,
    tally: Tally,
    state: State,
    cut: Option<Cut>,
}

/// Where a session works: room for the decisions of a batch and for their answers. It may be another's between two calls, so that
/// a session that asked for much once does not keep the room for the rest of its life.
#[derive(Debug, Default)]
pub struct Workroom {
    room: Room,
    answers: Option<Replies>,
    gists: CompactReplies,
    grants: Grants,
}

impl Workroom {
    /// Changes places with the room of this session.
    pub fn swap(&mut self, session: &mut Session) {
        std::mem::swap(self, &mut session.workroom);
    }
}

/// Somebody who is to be answered when somebody else has decided.
#[derive(Debug)]
struct Owed {
    due: Due,
    intent: Intent,
    limit_id: Box<str>,
    key: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// An answer is decided elsewhere.
    Waiting,
    Closed,
}

/// What became of what a session was fed with.
#[derive(Debug)]
pub struct Fed {
    /// How many bytes are done with. The rest is fed again, with more behind it.
    pub consumed: usize,
    /// All of the output may be written when the store's log is durable up to here; at once if there is none.
    pub durable: Option<Lsn>,
    /// Which replies wait for the log, in their order. Everything else may be written at once, as far as nothing before it waits.
    pub pledges: Vec<Pledge>,
    /// What to do when it is written.
    pub then: Then,
    /// What was done, for whoever counts; also what was said by [`Session::resume`] before.
    pub tally: Tally,
}

/// What was done, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Commands that are done with.
    pub commands: u64,
    /// Orders that were granted. Looks are not counted.
    pub granted: u64,
    /// Orders that were refused.
    pub refused: u64,
    /// Tokens that nobody knows, and commands of those who have shown none.
    pub failed_auths: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.commands += more.commands;
        self.granted += more.granted;
        self.refused += more.refused;
        self.failed_auths += more.failed_auths;
    }
}

impl Tally {
    /// One more order was answered, if it was one; refusals are told to the door.
    fn order(
        &mut self,
        intent: Intent,
        key: &[u8],
        answer: Option<&Result<Answer, OrderError>>,
        door: &Door,
    ) {
        let (Intent::Acquire, Some(Ok(answer))) = (intent, answer) else { return };
        match &answer.outcome {
            Outcome::Granted(_) => self.granted += 1,
            Outcome::Denied(denied) => {
                self.refused += 1;
                door.refused(&denied.limit, denied.item, key, answer.at);
            }
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum Then {
    /// Read more.
    Read,
    /// Feed the rest again: there is much output and more to say, or somebody should look at [`Session::take_failures`].
    Feed,
    /// Wait for this, and [`Session::resume`] with it; then feed the rest again.
    Wait(Awaited),
    /// Close the connection.
    Close,
}

/// Something that is decided elsewhere.
pub enum Awaited {
    /// A batch.
    Decisions(Later<Replies>),
    /// Whether a lease was given back.
    Release(Later<bool>),
    /// Until when a lease was renewed.
    Renew(Later<Result<Option<Timestamp>, OrderError>>),
}

/// What was decided elsewhere.
#[derive(Debug)]
pub enum Answered {
    /// A batch.
    Decisions(Result<Replies, Unavailable>),
    /// Whether a lease was given back.
    Release(Result<bool, Unavailable>),
    /// Until when a lease was renewed.
    Renew(Result<Result<Option<Timestamp>, OrderError>, Unavailable>),
}

impl Awaited {
    /// Waits for it.
    pub async fn answered(self) -> Answered {
        match self {
            Awaited::Decisions(later) => Answered::Decisions(later.await),
            Awaited::Release(later) => Answered::Release(later.await),
            Awaited::Renew(later) => Answered::Renew(later.await),
        }
    }
}

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Awaited::Decisions(_) => "Decisions",
            Awaited::Release(_) => "Release",
            Awaited::Renew(_) => "Renew",
        })
    }
}

/// What makes a session stop before everything is answered.
enum Stop {
    Wait(Awaited),
    Close,
}

impl Session {
    /// A connection that has just come to this door.
    pub fn new(door: Arc<Door>) -> Session {
        Session {
            id: door.next_id(),
            generation: door.generation(),
            pass: door.unknown_guest(),
            shown: None,
            door,
            protocol: Protocol::default(),
            name: Box::default(),
            reader: Reader::default(),
            openings: Openings::default(),
            workroom: Workroom::default(),
            owed: Vec::new(),
            failures: 0,
            tally: Tally::default(),
            state: State::Open,
            cut: None,
        }
    }

    /// Why the session was ended, if it was because of what came.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Which version of the protocol the client speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// How many tokens were shown since the last call that nobody knows. A session stops at each, so that whoever
    /// has the address can end it.
    pub fn take_failures(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    /// Replies what `input` says, behind what is in `output` already. While something is awaited, nothing is consumed.
    pub fn feed(&mut self, input: &[u8], output: &mut Vec<u8>) -> Fed {
        self.look_at_pass();
        let mut mouth = Mouth { output, pledges: Vec::new() };
        let (entries, bids) = self.workroom.room.take();
        let mut gathered = Gathered::new(entries, bids);
        let (consumed, then) = match self.state {
            State::Open => self.converse(input, &mut gathered, &mut mouth),
            State::Waiting => (0, Then::Read),
            State::Closed => (input.len(), Then::Close),
        };
        self.workroom.room.give_back(gathered.room());
        self.state = match then {
            Then::Close => State::Closed,
            Then::Wait(_) => State::Waiting,
            _ => self.state,
        };
        let pledges = mouth.pledges;
        let durable = pledges.iter().map(|pledge| pledge.lsn).max();
        Fed { consumed, durable, pledges, then, tally: std::mem::take(&mut self.tally) }
    }

    /// Whoever was let in may have to show again that they may be here. The number is read first: if things change while the doorman
    /// thinks, they are looked at once more the next time.
    fn look_at_pass(&mut self) {
        let generation = self.door.generation();
        if generation != self.generation {
            self.generation = generation;
            let pass = self.door.admit_again(self.shown.as_ref());
            self.admit(pass);
        }
    }

    /// From now on it may do this. What its frames meant before they may not mean any more.
    fn admit(&mut self, pass: Option<Pass>) {
        self.pass = pass;
        self.openings.forget();
    }

    /// Says what was awaited. Afterwards the rest of the input is fed again.
    pub fn resume(&mut self, answered: Answered, output: &mut Vec<u8>) {
        if self.state != State::Waiting {
            return;
        }
        self.state = State::Open;
        let owed = std::mem::take(&mut self.owed);
        let mut tally = self.tally;
        let mut speaker = self.speaker(output);
        match answered {
            Answered::Decisions(Ok(answers)) => {
                for (index, owed) in owed.iter().enumerate() {
                    tally.order(owed.intent, &owed.key, answers.get(index), &self.door);
                    speaker.say(&owed.due, &answers, index);
                }
                self.tally = tally;
            }
            Answered::Decisions(Err(error)) => {
                for owed in &owed {
                    let limit = self.door.store().get(&owed.limit_id);
                    match limit.filter(|limit| !limit.refuses_in_outage()) {
                        Some(_) => speaker.granted_by_rule(),
                        None => speaker.writer.error("UNAVAILABLE", &error),
                    }
                }
            }
            Answered::Release(Ok(released)) => speaker.writer.integer(i64::from(released)),
            Answered::Renew(Ok(renewed)) => renewal(&mut speaker, renewed),
            Answered::Release(Err(error)) | Answered::Renew(Err(error)) => {
                speaker.writer.error("UNAVAILABLE", &error);
            }
        }
    }

    /// Replies frame after frame; how much was consumed, and what to do next.
    fn converse<'i>(
        &mut self,
        input: &'i [u8],
        gathered: &mut Gathered<'i>,
        mouth: &mut Mouth<'_>,
    ) -> (usize, Then) {
        let mut consumed = 0;
        loop {
            consumed += self.gather(&input[consumed..], gathered);
            if !gathered.is_full() {
                let rest = &input[consumed..];
                let (length, framing) = match self.reader.read(rest) {
                    Ok(Frame::Whole { length, framing }) => (length, framing),
                    Ok(Frame::Blank { length }) => {
                        consumed += length;
                        continue;
                    }
                    Ok(Frame::Half) => return (consumed, self.decide(gathered, mouth).unwrap_or(Then::Read)),
                    Err(fault) => {
                        let wait = self.decide(gathered, mouth);
                        if wait.is_none() {
                            self.writer(mouth.output).error("ERR", fault);
                            self.cut = Some(fault.into());
                        }
                        return (consumed, wait.unwrap_or(Then::Close));
                    }
                };
                match self.read(rest, framing) {
                    Ok(Said::Decision(entry)) => {
                        self.tally.commands += 1;
                        self.take(entry, rest, framing, gathered);
                    }
                    said => {
                        // What was said before is answered before, and perhaps elsewhere; then this is read once more.
                        if let Some(wait) = self.decide(gathered, mouth) {
                            return (consumed, wait);
                        }
                        self.tally.commands += 1;
                        match self.answer(said, rest, mouth) {
                            None => {}
                            Some(Stop::Wait(awaited)) => return (consumed + length, Then::Wait(awaited)),
                            Some(Stop::Close) => return (consumed + length, Then::Close),
                        }
                    }
                }
                consumed += length;
            }
            if gathered.is_full()
                && let Some(wait) = self.decide(gathered, mouth)
            {
                return (consumed, wait);
            }
            if mouth.output.len() >= LARGEST_OUTPUT || self.failures > 0 {
                return (consumed, self.decide(gathered, mouth).unwrap_or(Then::Feed));
            }
        }
    }

    /// Puts what was gathered to the store and says its answers, unless they have to be awaited.
    fn decide(&mut self, gathered: &mut Gathered<'_>, mouth: &mut Mouth<'_>) -> Option<Then> {
        self.bid(gathered, mouth);
        let entries = &mut gathered.entries;
        if entries.is_empty() {
            return None;
        }
        let answers = self.workroom.answers.take().unwrap_or_else(|| Replies::new(Detail::Readings));
        let (answers, durable) = match self.workroom.room.submit(entries, self.door.limiter(), answers) {
            StoreReply::Now(answers) => (answers, None),
            StoreReply::Durable(answers, lsn) => (answers, Some(lsn)),
            StoreReply::Later(later) => {
                let owed = |Entry { due, intent, limit_id, key, .. }: Entry<'_>| {
                    let (limit_id, key) = (limit_id.into(), key.into());
                    Owed { due, intent, limit_id, key }
                };
                self.owed.extend(entries.drain(..).map(owed));
                return Some(Then::Wait(Awaited::Decisions(later)));
            }
        };
        let mut tally = self.tally;
        let start = mouth.output.len();
        let mut speaker = self.speaker(mouth.output);
        for (index, entry) in entries.iter().enumerate() {
            tally.order(entry.intent, entry.key, answers.get(index), &self.door);
            speaker.say(&entry.due, &answers, index);
        }
        mouth.pledge(start, entries.len(), durable);
        entries.clear();
        self.workroom.answers = Some(answers);
        self.tally = tally;
        None
    }

    /// What the frame at the beginning of `rest` says.
    fn read<'i>(&self, rest: &'i [u8], framing: Framing) -> Result<Said<'i>, (Mistake, Framing)> {
        let arguments = self.reader.arguments(rest);
        let Some(form) = arguments.get(0).and_then(Form::named) else {
            return Err((command::unknown(&arguments), framing));
        };
        // Only a line that nobody knows is taken for a stranger who does not speak the protocol.
        let harmless = |mistake| (mistake, Framing::Array);
        self.check_leave(form).map_err(harmless)?;
        self.understand(form.read(&arguments).map_err(harmless)?).map_err(harmless)
    }

    fn check_leave(&self, form: &Form) -> Result<(), Mistake> {
        match (form.leave, &self.pass) {
            (Leave::Outside, _) | (Leave::Inside, Some(_)) => Ok(()),
            (Leave::Role(needed), Some(pass)) if pass.role >= needed => Ok(()),
            (Leave::Role(_), Some(pass)) => Err(Mistake {
                code: "NOPERM",
                text: format!("a token of role {} may not run the '{}' command", pass.role.word(), form.name)
                    .into(),
            }),
            (_, None) => Err(Mistake { code: NOAUTH, text: "Authentication required.".into() }),
        }
    }

    /// Tells decisions, which are gathered, from everything else.
    fn understand<'i>(&self, command: Command<'i>) -> Result<Said<'i>, Mistake> {
        let covers = |limit_id: &str| self.pass.as_ref().is_some_and(|pass| pass.covers(limit_id));
        let outside = || Mistake { code: "NOPERM", text: "this token is for other limits".into() };
        Ok(match command {
            Command::Decide(question) => {
                let limit_id = covers(question.limit_id).then_some(question.limit_id).ok_or_else(outside)?;
                Said::Decision(Entry {
                    due: Due::Question,
                    intent: question.intent,
                    limit_id,
                    key: question.key,
                    count: question.count,
                    request_id: question.request_id,
                })
            }
            Command::Throttle(throttle) => {
                covers(RESERVED).then_some(()).ok_or_else(outside)?;
                let described = self.door.throttles().described(throttle.bucket);
                let described = described.map_err(|error| match self.door.limiter().store().trouble() {
                    Some(why) => Mistake { code: "UNAVAILABLE", text: why.to_string().into() },
                    None => Mistake::err(error.to_string()),
                })?;
                Said::Decision(Entry {
                    due: Due::Throttle(throttle.dialect, described),
                    intent: Intent::Acquire,
                    limit_id: "",
                    key: throttle.key,
                    count: throttle.quantity,
                    request_id: None,
                })
            }
            other => Said::Other(other),
        })
    }

    /// Replies what is not a decision.
    fn answer(
        &mut self,
        said: Result<Said<'_>, (Mistake, Framing)>,
        rest: &[u8],
        mouth: &mut Mouth<'_>,
    ) -> Option<Stop> {
        let command = match said {
            Ok(Said::Other(command)) => command,
            Ok(Said::Decision(_)) => return None,
            Err((mistake, framing)) => {
                self.tally.failed_auths += u64::from(mistake.code == NOAUTH);
                self.writer(mouth.output).error(mistake.code, mistake.text);
                if framing == Framing::Array {
                    return None;
                }
                self.cut = Some(Cut::Protocol);
                return Some(Stop::Close);
            }
        };
        let mut writer = self.writer(mouth.output);
        match command {
            Command::Decide(_) | Command::Throttle(_) => {}
            Command::Release { lease } => return self.release(lease, mouth).map(Stop::Wait),
            Command::Renew { lease, ttl } => return self.renew(lease, ttl, mouth).map(Stop::Wait),
            Command::Ping { message: None } => writer.simple("PONG"),
            Command::Ping { message: Some(message) } | Command::Echo { message } => writer.bulk(message),
            Command::Hello(hello) => self.hello(&hello, mouth),
            Command::Auth { token } => self.auth(token, mouth),
            Command::Quit => {
                writer.simple("OK");
                return Some(Stop::Close);
            }
            Command::Select { index: 0 } => writer.simple("OK"),
            Command::Select { .. } => writer.error("ERR", "DB index is out of range"),
            Command::Commands(inquiry) => self.commands(inquiry, rest, mouth),
            Command::Client(client) => self.client(client, mouth),
            Command::Info => writer.text(connection_commands::INFO),
        }
        None
    }

    fn writer<'o>(&self, output: &'o mut Vec<u8>) -> Writer<'o> {
        Writer::new(output, self.protocol)
    }

    fn speaker<'o>(&self, output: &'o mut Vec<u8>) -> Speaker<'_, 'o> {
        Speaker { writer: self.writer(output), tick: self.door.tick(), throttles: self.door.throttles() }
    }
}

/// What a frame says, as far as it matters for the order of things.
enum Said<'i> {
    Decision(Entry<'i>),
    Other(Command<'i>),
}

impl From<Fault> for Cut {
    fn from(fault: Fault) -> Cut {
        match fault {
            Fault::FrameTooLarge | Fault::LineTooLong => Cut::TooLarge,
            _ => Cut::Protocol,
        }
    }
}
