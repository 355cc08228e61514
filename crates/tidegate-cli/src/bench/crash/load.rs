//! Those who ask while the server is killed: some over RESP, in batches, some over HTTP, one question at a time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};

use super::super::connection::{Line, Place};
use super::super::random::Sequence;
use super::super::target::Target;
use super::super::stopwatch::now;
use super::super::wire::Ask;
use super::super::wire::resp::Value;
use super::sales_ledger::{Book, Question, Sent};
use super::server_process::Ready;
use crate::Failure;

/// Connections of each kind.
const CONNECTIONS: u64 = 4;
/// How many questions go together over RESP.
const BATCH: usize = 16;
/// One round of so many gives a lease back.
const ROUNDS_PER_RELEASE: u32 = 2;

/// A door of the server that is killed.
pub(super) fn place(scheme: &str, address: SocketAddr, patience: Duration) -> Result<Place, Failure> {
    let target = Target::parse(&format!("{scheme}://{address}")).map_err(Failure::Failed)?;
    Ok(Place::at(&target, vec![address], None, patience))
}

/// Asks at all doors until everybody has noticed that the server is gone.
pub(super) async fn under_load(
    book: &Rc<RefCell<Book>>,
    ready: &Ready,
    patience: Duration,
    killing: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    book.borrow_mut().begin_life();
    let all = LocalSet::new();
    let mut askers = JoinSet::new();
    for number in 0..CONNECTIONS {
        for (scheme, address, batch) in [("redis", ready.resp, BATCH), ("http", ready.http, 1)] {
            let place = place(scheme, address, patience)?;
            // Which door it is matters more than who: each has a sequence of its own.
            let random = Sequence::from(number << 8 | batch as u64);
            askers.spawn_local_on(run(Rc::clone(book), place, batch, random), &all);
        }
    }
    all.run_until(async {
        let killed = killing.await;
        while askers.join_next().await.is_some() {}
        killed
    })
    .await
}

/// One connection, until it breaks or there is nothing left to ask.
async fn run(book: Rc<RefCell<Book>>, place: Place, batch: usize, mut random: Sequence) {
    let mut line = match Line::open(&place).await {
        Ok(line) => line,
        Err(why) => return book.borrow_mut().broke(&why),
    };
    loop {
        let questions = next(&book, batch, &mut random);
        if questions.is_empty() {
            return;
        }
        let mut gone = ask(&book, &mut line, questions).await;
        if gone.is_ok() && batch > 1 && random.below(ROUNDS_PER_RELEASE) == 0 {
            gone = release(&book, &mut line, &mut random).await;
        }
        if let Err(why) = gone {
            return book.borrow_mut().broke(&why);
        }
    }
}

/// What to ask next: first what was lost before.
fn next(book: &RefCell<Book>, batch: usize, random: &mut Sequence) -> Vec<Question> {
    let mut book = book.borrow_mut();
    let mut questions = Vec::with_capacity(batch);
    while questions.len() < batch {
        match book.again.pop().or_else(|| book.question(random)) {
            Some(question) => questions.push(question),
            None => break,
        }
    }
    questions
}

/// Asks some questions at once and writes down what comes of each.
pub(super) async fn ask(
    book: &RefCell<Book>,
    line: &mut Line,
    questions: Vec<Question>,
) -> Result<(), String> {
    book.borrow_mut().sending(questions.iter(), now());
    for Question { law, key, id, .. } in &questions {
        line.ask(Ask { limit: law.id(), key, request_id: (!id.is_empty()).then_some(id) });
    }
    let mut gone = line.send().await;
    for question in questions {
        let reply = match gone {
            Ok(()) => line.hear().await,
            Err(ref why) => Err(why.clone()),
        };
        let mut book = book.borrow_mut();
        match reply {
            Ok(Ok(answer)) => book.heard(question, answer.allowed, answer.lease, now()),
            Ok(Err(why)) => book.fail(&why),
            Err(why) => {
                book.lost(question);
                gone = Err(why);
            }
        }
    }
    gone
}

/// Gives a lease back, if there is one.
async fn release(book: &RefCell<Book>, line: &mut Line, random: &mut Sequence) -> Result<(), String> {
    let Some((held, sent)) = book.borrow_mut().lease_to_release(random) else { return Ok(()) };
    let released = line.call(&["TG.RELEASE", &held.lease], |value| *value == Value::Number(1)).await;
    let mut book = book.borrow_mut();
    match released {
        Ok(Ok(was_known)) => {
            if sent == Sent::First {
                book.asked_about(&held, was_known);
            }
            Ok(())
        }
        Ok(Err(why)) => {
            book.fail(&why);
            Ok(())
        }
        Err(why) => {
            // It may have come back or not.
            book.sent_back.push(held);
            Err(why)
        }
    }
}
