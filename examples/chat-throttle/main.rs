//! A chat room: at most six messages in any minute, and at most two from each user.
//!
//! Messages pass through as a stream, in order. A message above a limit is dropped, and its sender gets a notice. Rooms
//! that share a limiter share its counts.
//!
//! Run it with `cargo run -p tidegate --example chat-throttle`.

use std::error::Error;
use std::io::Write;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidegate::Timestamp;
use tidegate::clock::ManualClock;
use tidegate::stream::{LimitExt, MessageRate, MessageRefusal, RefusedBy, StreamLimiter, StreamRules};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Message {
    second: u64,
    user: Option<&'static str>,
    text: &'static str,
}

impl Message {
    const fn new(second: u64, user: Option<&'static str>, text: &'static str) -> Message {
        Message { second, user, text }
    }

    fn sender(&self) -> &'static str {
        self.user.unwrap_or("somebody")
    }
}

/// Messages without a user count only against the room.
const MESSAGES: [Message; 9] = [
    Message::new(0, Some("ada"), "hello"),
    Message::new(1, Some("bob"), "hello ada"),
    Message::new(2, Some("mallory"), "buy now"),
    Message::new(3, Some("mallory"), "buy now"),
    Message::new(4, Some("mallory"), "buy now"),
    Message::new(10, Some("ada"), "ignore him"),
    Message::new(20, None, "who am I?"),
    Message::new(30, Some("bob"), "goodnight"),
    Message::new(61, Some("ada"), "one minute later"),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// Sends the messages through the limiter.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // A chat server calls `StreamLimiter::new`. This clock follows the messages, so the example does not wait.
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let rules = StreamRules { global: MessageRate::of(6, MINUTE), user: MessageRate::of(2, MINUTE) };
    let limiter = StreamLimiter::with_clock(rules, Arc::clone(&clock))?;

    let (notice_sender, notices) = mpsc::channel();
    let passed: Vec<Message> = stream::iter(MESSAGES)
        .inspect(|message| clock.set(Timestamp::from_ticks(message.second * 1_000_000_000)))
        .limited(&limiter, |message| message.user.into())
        .observed(move |message, refusal| {
            // Cannot fail: the receiver outlives the stream.
            let _ = notice_sender.send(notice(message, refusal));
        })
        .collect()
        .await;

    for message in passed {
        writeln!(out, "{:>2} s  {}: {}", message.second, message.sender(), message.text)?;
    }
    for notice in notices {
        writeln!(out, "{notice}")?;
    }
    let stats = limiter.stats();
    writeln!(out, "{} of {} passed, {} users are active", stats.passed, stats.processed, stats.active_users)?;
    Ok(())
}

/// Tells the sender why a message was dropped and when the next one fits.
fn notice(message: &Message, refusal: &MessageRefusal) -> String {
    let sender = message.sender();
    let reason = match refusal.by {
        RefusedBy::Global => "the room is busy",
        RefusedBy::User => "that was quick",
    };
    let seconds = refusal.retry_after().unwrap_or_default().as_nanos().div_ceil(1_000_000_000);
    format!("to {sender}, who said '{}': {reason}, try again in {seconds} s", message.text)
}
