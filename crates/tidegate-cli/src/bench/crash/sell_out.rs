//! The last life, in which nobody is killed: what was lost is asked again, leases are asked for, and everything is sold.

use std::cell::RefCell;
use std::time::Duration;

use super::super::connection::Line;
use super::super::wire::resp::Value;
use super::load::{ask, place};
use super::sales_ledger::{Book, Question, key};
use super::server_process::Ready;
use super::tested_limit::Law;
use crate::Failure;

/// How many questions go together.
const BATCH: usize = 64;
/// How long a lease lasts from here on, in milliseconds: as long as it did.
const TTL_MS: &str = "86400000";

/// Sells what is left of everything.
pub(super) async fn sell_out(book: &RefCell<Book>, ready: &Ready, patience: Duration) -> Result<(), Failure> {
    book.borrow_mut().begin_life();
    let place = place("redis", ready.resp, patience)?;
    let gone = |why: String| Failure::Failed(format!("the server went away though nobody killed it: {why}"));
    let mut line = Line::open(&place).await.map_err(gone)?;
    let again = std::mem::take(&mut book.borrow_mut().again);
    for some in again.chunks(BATCH) {
        ask(book, &mut line, some.to_vec()).await.map_err(gone)?;
    }
    let sent_back = std::mem::take(&mut book.borrow_mut().sent_back);
    for held in sent_back {
        // Whether it had come back before is nobody's business.
        let released = line.call(&["TG.RELEASE", &held.lease], |_| ()).await.map_err(gone)?;
        released.unwrap_or_else(|why| book.borrow_mut().fail(&why));
    }
    renew_leases(book, &mut line).await.map_err(gone)?;
    let laws = book.borrow().laws();
    for law in laws {
        for number in 0..law.keys() {
            sell(book, &mut line, law, number).await.map_err(gone)?;
        }
    }
    Ok(())
}

/// Asks for every lease that should be there.
async fn renew_leases(book: &RefCell<Book>, line: &mut Line) -> Result<(), String> {
    let held: Vec<_> = book.borrow().accounts.iter().flat_map(|account| account.held.clone()).collect();
    for held in held {
        let renewed =
            line.call(&["TG.RENEW", &held.lease, TTL_MS], |value| matches!(value, Value::Number(_))).await?;
        let mut book = book.borrow_mut();
        match renewed {
            Ok(was_known) => book.asked_about(&held, was_known),
            Err(why) => book.fail(&why),
        }
    }
    Ok(())
}

/// Asks for a key until it is refused.
async fn sell(book: &RefCell<Book>, line: &mut Line, law: Law, number: u32) -> Result<(), String> {
    let question = Question { law, number, key: key(number), id: String::new() };
    let mut asked = 0;
    loop {
        let before = so_far(book, law);
        ask(book, line, vec![question.clone(); BATCH]).await?;
        let after = so_far(book, law);
        asked += BATCH as u64;
        if after.failures > before.failures || after.sold - before.sold < BATCH as u64 {
            return Ok(());
        }
        // One life alone cannot sell more than there is, or it is found out anyhow.
        if asked > 2 * law.capacity() + BATCH as u64 {
            book.borrow_mut().fail("a limit that refuses nobody");
            return Ok(());
        }
    }
}

struct SoFar {
    sold: u64,
    failures: u64,
}

fn so_far(book: &RefCell<Book>, law: Law) -> SoFar {
    let mut book = book.borrow_mut();
    SoFar { sold: book.account(law).sold, failures: book.failures }
}
