//! What was sold, over all lives: what the tool knows, and never what the server says.

use std::time::{Duration, Instant};

use super::super::random::Sequence;
use super::super::tally::Reasons;
use super::tested_limit::Law;

/// How many questions that were told are asked again in the next life.
const TOLD_AGAIN: usize = 32;
/// One question of so many has an id.
const QUESTIONS_PER_ID: u32 = 4;

/// A question that can be asked again.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) law: Law,
    pub(super) number: u32,
    pub(super) key: String,
    /// Empty if it has none.
    pub(super) id: String,
}

/// A lease that was granted, and in which life.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) lease: Box<str>,
    life: u32,
}

/// How often a lease was sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The server must know it.
    First,
    /// It may have come back before.
    Again,
}

/// What is known of one limit.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) law: Law,
    /// How often it was made: once, or it was forgotten.
    pub(super) made: u64,
    /// Replies that came as granted.
    pub(super) sold: u64,
    pub(super) by_key: Vec<u64>,
    /// Questions without an answer, that may have been granted all the same.
    pub(super) unanswered: u64,
    /// Leases that were granted and not sent back.
    pub(super) held: Vec<Held>,
    /// The most leases that were held at once.
    pub(super) most_held: u64,
    /// What may still be asked in this life, so that something is left for the next.
    share: u64,
    /// From before the first question, from after the first answer; to before the last question, to after the last answer.
    began: Option<Instant>,
    first_heard: Option<Instant>,
    last_sent: Option<Instant>,
    last_heard: Option<Instant>,
}

impl Account {
    /// What was sold, and for leases, at once.
    pub(super) fn most_sold(&self) -> u64 {
        if self.law == Law::Concurrency { self.most_held } else { self.sold }
    }

    /// What was sold above the limit.
    pub(super) fn over(&self) -> u64 {
        let most = self.law.most(between(self.began, self.last_heard));
        match u64::from(self.law.keys()) {
            1 => self.most_sold().saturating_sub(most),
            keys => self.by_key.iter().map(|sold| sold.saturating_sub(most / keys)).sum(),
        }
    }

    /// What was not sold though there was nobody else who had it, once everything was asked for.
    pub(super) fn lost(&self) -> u64 {
        let left = if self.law == Law::Concurrency { self.held.len() as u64 } else { self.sold };
        self.law.least(between(self.first_heard, self.last_sent)).saturating_sub(left)
    }

    /// What may be lost with so many kills.
    pub(super) fn promised(&self, kills: u32) -> u64 {
        self.law.slice() * u64::from(kills) + self.unanswered
    }
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    from.zip(to).map(|(from, to)| to.saturating_duration_since(from)).unwrap_or_default()
}

/// What is known of all limits.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) accounts: Vec<Account>,
    /// Questions with an id that were under way when the server was killed: they are asked again.
    pub(super) again: Vec<Question>,
    /// Leases whose release was sent and not answered: they are sent back again, and have come back or will.
    pub(super) sent_back: Vec<Held>,
    /// Questions with an id that were granted in this life: asked again in the next, they cost nothing.
    pub(super) told: Vec<Question>,
    pub(super) replayed: u64,
    pub(super) charged_twice: u64,
    /// Leases that were named to the server in a later life than they were granted in.
    pub(super) leases_outlived: u64,
    /// Leases that it should have known, and did not.
    pub(super) leases_lost: u64,
    pub(super) failures: u64,
    pub(super) reasons: Reasons,
    /// From here on a broken connection is nobody's failure.
    pub(super) is_killed: bool,
    life: u32,
    shares: u32,
    next_id: u64,
}

impl Book {
    /// Nothing has been sold yet, and there will be so many kills.
    pub(super) fn open(laws: &[Law], kills: u32) -> Book {
        let account = |law: &Law| Account {
            law: *law,
            made: 0,
            sold: 0,
            by_key: vec![0; law.keys() as usize],
            unanswered: 0,
            held: Vec::new(),
            most_held: 0,
            share: 0,
            began: None,
            first_heard: None,
            last_sent: None,
            last_heard: None,
        };
        Book {
            accounts: laws.iter().map(account).collect(),
            again: Vec::new(),
            sent_back: Vec::new(),
            told: Vec::new(),
            replayed: 0,
            charged_twice: 0,
            leases_outlived: 0,
            leases_lost: 0,
            failures: 0,
            reasons: Reasons::default(),
            is_killed: false,
            life: 0,
            shares: kills.saturating_add(2),
            next_id: 0,
        }
    }

    /// The laws, in their order.
    pub(super) fn laws(&self) -> Vec<Law> {
        self.accounts.iter().map(|account| account.law).collect()
    }

    /// The account of a law that is sold.
    pub(super) fn account(&mut self, law: Law) -> &mut Account {
        let found = self.accounts.iter().position(|account| account.law == law);
        &mut self.accounts[found.expect("only laws that are sold are asked about")]
    }

    /// Another life: everybody has a share again.
    pub(super) fn begin_life(&mut self) {
        self.is_killed = false;
        self.life += 1;
        for account in &mut self.accounts {
            account.share = (account.law.capacity() / u64::from(self.shares)).max(1);
        }
    }

    /// What to ask next; `None` if this life has had its share of everything.
    pub(super) fn question(&mut self, random: &mut Sequence) -> Option<Question> {
        let open: Vec<_> = (0..self.accounts.len()).filter(|at| self.accounts[*at].share > 0).collect();
        let drawn = random.below(u32::try_from(open.len()).unwrap_or(u32::MAX));
        let account = &mut self.accounts[*open.get(drawn as usize)?];
        let law = account.law;
        // Leases come back, so there is always another.
        if law != Law::Concurrency {
            account.share -= 1;
        }
        let number = random.below(law.keys());
        // A lease that was granted and not answered would be nobody's for the rest of the run.
        let wants_id = law == Law::Concurrency || random.below(QUESTIONS_PER_ID) == 0;
        self.next_id += u64::from(wants_id);
        let id = if wants_id { format!("crash-{}", self.next_id) } else { String::new() };
        Some(Question { law, number, key: key(number), id })
    }

    /// Some questions are about to be sent.
    pub(super) fn sending<'a>(&mut self, questions: impl Iterator<Item = &'a Question>, now: Instant) {
        for question in questions {
            let account = self.account(question.law);
            account.began.get_or_insert(now);
            account.last_sent = Some(now);
        }
    }

    /// An answer has come.
    pub(super) fn heard(&mut self, question: Question, allowed: bool, lease: Option<Box<str>>, now: Instant) {
        let life = self.life;
        let account = self.account(question.law);
        account.first_heard.get_or_insert(now);
        account.last_heard = Some(now);
        if !allowed {
            return;
        }
        account.sold += 1;
        account.by_key[question.number as usize] += 1;
        account.held.extend(lease.map(|lease| Held { lease, life }));
        account.most_held = account.most_held.max(account.held.len() as u64);
        if !question.id.is_empty() && question.law.is_counted() && self.told.len() < TOLD_AGAIN {
            self.told.push(question);
        }
    }

    /// No answer will come. With an id it is asked again; without one it may have been granted.
    pub(super) fn lost(&mut self, question: Question) {
        if question.id.is_empty() {
            self.account(question.law).unanswered += 1;
        } else {
            self.again.push(question);
        }
    }

    /// Something went wrong that no kill explains.
    pub(super) fn fail(&mut self, why: &str) {
        self.failures += 1;
        self.reasons.add(why, 1);
    }

    /// A connection broke.
    pub(super) fn broke(&mut self, why: &str) {
        if !self.is_killed {
            self.fail(why);
        }
    }

    /// The server was asked about a lease that it granted.
    pub(super) fn asked_about(&mut self, held: &Held, was_known: bool) {
        self.leases_outlived += u64::from(held.life < self.life);
        self.leases_lost += u64::from(!was_known);
    }

    /// A lease to give back, for the first time or again; from here on it counts as given back.
    pub(super) fn lease_to_release(&mut self, random: &mut Sequence) -> Option<(Held, Sent)> {
        if let Some(held) = self.sent_back.pop() {
            return Some((held, Sent::Again));
        }
        let account = self.accounts.iter_mut().find(|account| account.law == Law::Concurrency)?;
        let drawn = random.below(u32::try_from(account.held.len()).unwrap_or(u32::MAX)) as usize;
        (drawn < account.held.len()).then(|| (account.held.swap_remove(drawn), Sent::First))
    }
}

/// What a key is called.
pub(super) fn key(number: u32) -> String {
    format!("key-{number}")
}

#[cfg(test)]
mod tests {
    use super::super::super::stopwatch::now;
    use super::*;

    fn asked(law: Law, number: u32) -> Question {
        Question { law, number, key: key(number), id: String::new() }
    }

    fn sell(book: &mut Book, law: Law, number: u32, count: u64) {
        for _ in 0..count {
            let lease = (law == Law::Concurrency).then(|| "l".into());
            book.sending([asked(law, number)].iter(), now());
            book.heard(asked(law, number), true, lease, now());
        }
    }

    #[test]
    fn one_above_the_limit_is_found_for_every_law() {
        let mut book = Book::open(&Law::ALL, 1);
        for law in Law::ALL {
            // A bucket may have let in one more, and the time that this takes.
            let slack = if law == Law::Bucket { 100 } else { 0 };
            sell(&mut book, law, 0, law.capacity() / u64::from(law.keys()));
            assert_eq!(book.account(law).over(), 0, "{law}");
            sell(&mut book, law, 0, 1 + slack);
            assert!(book.account(law).over() > 0, "{law}");
        }
    }

    #[test]
    fn what_is_missing_at_the_end_was_lost() {
        let mut book = Book::open(&[Law::Total], 2);
        sell(&mut book, Law::Total, 0, Law::Total.capacity() - 800);
        book.lost(asked(Law::Total, 0));
        let account = book.account(Law::Total);
        assert_eq!((account.lost(), account.promised(2)), (800, 2 * 390 + 1));
    }

    #[test]
    fn a_lease_that_is_sent_back_is_free() {
        let mut book = Book::open(&[Law::Concurrency], 1);
        let limit = Law::Concurrency.capacity();
        sell(&mut book, Law::Concurrency, 0, limit);
        let sent = book.lease_to_release(&mut Sequence::from(1));
        assert_eq!(sent.map(|(_, sent)| sent), Some(Sent::First));
        sell(&mut book, Law::Concurrency, 0, 1);
        assert_eq!((book.account(Law::Concurrency).over(), book.account(Law::Concurrency).lost()), (0, 0));
        sell(&mut book, Law::Concurrency, 0, 1);
        assert_eq!(book.account(Law::Concurrency).over(), 1);
    }

    #[test]
    fn a_release_without_an_answer_is_sent_again() {
        let mut book = Book::open(&[Law::Concurrency], 1);
        sell(&mut book, Law::Concurrency, 0, 2);
        let (held, _) = book.lease_to_release(&mut Sequence::from(1)).expect("there are two");
        book.sent_back.push(held);
        let sent = [(); 3].map(|()| book.lease_to_release(&mut Sequence::from(1)).map(|(_, sent)| sent));
        assert_eq!(sent, [Some(Sent::Again), Some(Sent::First), None]);
    }

    #[test]
    fn only_a_lease_of_an_earlier_life_has_outlived_it() {
        let mut book = Book::open(&[Law::Concurrency], 1);
        book.begin_life();
        sell(&mut book, Law::Concurrency, 0, 1);
        let held = book.account(Law::Concurrency).held[0].clone();
        book.asked_about(&held, true);
        assert_eq!((book.leases_outlived, book.leases_lost), (0, 0));
        book.begin_life();
        book.asked_about(&held, true);
        book.asked_about(&held, false);
        assert_eq!((book.leases_outlived, book.leases_lost), (2, 1));
    }

    #[test]
    fn a_life_has_a_share_and_no_more() {
        let mut book = Book::open(&[Law::Total, Law::Key], 8);
        let mut random = Sequence::from(7);
        assert!(book.question(&mut random).is_none(), "no life has begun");
        book.begin_life();
        let mut asked = 0;
        while book.question(&mut random).is_some() {
            asked += 1;
        }
        assert_eq!(asked, Law::Total.capacity() / 10 + Law::Key.capacity() / 10);
    }

    #[test]
    fn a_lost_question_with_an_id_is_asked_again() {
        let mut book = Book::open(&[Law::Total], 1);
        book.lost(Question { id: "r".to_owned(), ..asked(Law::Total, 0) });
        assert_eq!((book.again.len(), book.account(Law::Total).unanswered), (1, 0));
    }

    #[test]
    fn a_connection_may_break_once_the_server_is_killed() {
        let mut book = Book::open(&[Law::Total], 1);
        book.is_killed = true;
        book.broke("reset");
        assert_eq!(book.failures, 0);
        book.begin_life();
        book.broke("reset");
        assert_eq!(book.failures, 1);
    }
}
