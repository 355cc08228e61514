//! A chat room: at most six messages in any minute, and at most two of each user.
//!
//! Messages come as a stream and leave as one, in order; what does not fit is dropped, and somebody is told. Several rooms
//! could share the limiter, and would count together then. Run it with `cargo run -p tidegate --example chat-throttle`.

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
    story(&mut std::io::stdout()).await
}

/// An evening in the lobby.
pub(crate) async fn story(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let minute = Duration::from_secs(60);
    // A program uses StreamLimiter::new; this clock follows the messages, so that the evening takes no time.
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
            // The end of the channel outlives the stream.
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
