//! A chat room: at most six messages in any minute, and at most two of each user.
//!
//! Messages pass through as a stream, in order. Messages above a limit are dropped, and their sender gets a notice. Rooms
//! that share a limiter share its counts. Run it with `cargo run -p tidegate --example chat-throttle`.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidegate::clock::ManualClock;
use tidegate::model::Timestamp;
use tidegate::stream::{LimitExt, Rate, Refusal, RefusedBy, Rules, StreamLimiter};

struct Message {
    second: u64,
    user: Option<&'static str>,
    text: &'static str,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// Sends messages of several users through the limiter.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let minute = Duration::from_secs(60);
    // A program uses StreamLimiter::new. This clock follows the messages, so the example takes no time.
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let limiter = StreamLimiter::with_clock(
        Rules { global: Rate::of(6, minute), user: Rate::of(2, minute) },
        Arc::clone(&clock),
    )?;
    let (refusals, refused) = channel();
    let passed: Vec<Message> = stream::iter(evening())
        .inspect(|message| clock.set(Timestamp::from_ticks(message.second * 1_000_000_000)))
        .limited(&limiter, |message| message.user.into())
        .observed(move |message, refusal| {
            // The receiver outlives the stream.
            let _ = refusals.send(apology(message, refusal));
        })
        .collect()
        .await;

    for Message { second, user, text } in passed {
        writeln!(out, "{second:>2} s  {}: {text}", user.unwrap_or("somebody"))?;
    }
    for apology in refused {
        writeln!(out, "{apology}")?;
    }
    let stats = limiter.stats();
    writeln!(out, "{} of {} passed, {} users are active", stats.passed, stats.processed, stats.active_users)?;
    Ok(())
}

fn apology(message: &Message, refusal: &Refusal) -> String {
    let who = message.user.unwrap_or("somebody");
    let why = match refusal.by {
        RefusedBy::Global => "the room is busy",
        RefusedBy::User => "that was quick",
    };
    let seconds = refusal.retry_after().unwrap_or_default().as_nanos().div_ceil(1_000_000_000);
    format!("to {who}, who said '{}': {why}, try again in {seconds} s", message.text)
}

fn evening() -> Vec<Message> {
    let message = |(second, user, text): (u64, &'static str, &'static str)| Message {
        second,
        user: (!user.is_empty()).then_some(user),
        text,
    };
    [
        (0, "ada", "hello"),
        (1, "bob", "hello ada"),
        (2, "mallory", "buy now"),
        (3, "mallory", "buy now"),
        (4, "mallory", "buy now"),
        (10, "ada", "ignore him"),
        (20, "", "who am I?"),
        (30, "bob", "goodnight"),
        (61, "ada", "one minute later"),
    ]
    .map(message)
    .into()
}
