//! A tunnel: after an upgrade both ends say what they like, and the gateway passes it on.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::buffers::Buffer;
use crate::deadline::{Interruption, Midst, Pace};
use crate::handshake::Stream;
use crate::request_log::Told;
use crate::worker::Over;

/// One way through the tunnel.
struct Way {
    buffer: Buffer,
    /// Whether the one end has said everything.
    has_ended: bool,
    /// Whether the other has been told so.
    is_closed: bool,
    /// How much has passed.
    passed: u64,
}

impl Way {
    const fn new(buffer: Buffer) -> Way {
        Way { buffer, has_ended: false, is_closed: false, passed: 0 }
    }

    /// Passes on what there is. Whether anything moved; an error is the end of both ways.
    fn poll(
        &mut self,
        mut from: Pin<&mut impl AsyncRead>,
        mut to: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> std::io::Result<bool> {
        let mut has_moved = false;
        loop {
            while !self.buffer.is_empty() {
                match to.as_mut().poll_write(cx, self.buffer.filled())? {
                    Poll::Pending => return Ok(has_moved),
                    Poll::Ready(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                    Poll::Ready(length) => {
                        self.buffer.settle(length);
                        self.passed += length as u64;
                    }
                }
                has_moved = true;
            }
            if self.has_ended {
                if !self.is_closed && to.as_mut().poll_shutdown(cx)?.is_ready() {
                    self.is_closed = true;
                }
                return Ok(has_moved);
            }
            match self.buffer.poll_fill(from.as_mut(), cx)? {
                Poll::Pending => {
                    self.buffer.rest();
                    let _on_its_way = to.as_mut().poll_flush(cx)?;
                    return Ok(has_moved);
                }
                Poll::Ready(0) => self.has_ended = true,
                Poll::Ready(_) => has_moved = true,
            }
        }
    }
}

/// Passes on what both ends say, until both have said everything or nobody has said anything for too long. What has passed is told as it passes.
pub(super) async fn between<S: Stream>(
    client: &mut S,
    input: Buffer,
    mut upstream: TcpStream,
    arrived: Buffer,
    pace: &mut Pace,
    patience: Duration,
    told: &mut Told,
) -> Over {
    let (mut there, mut back) = (Way::new(input), Way::new(arrived));
    pace.within(Instant::now(), patience);
    std::future::poll_fn(|cx| {
        let moved = there.poll(Pin::new(&mut *client), Pin::new(&mut upstream), cx).and_then(|there_moved| {
            Ok(back.poll(Pin::new(&mut upstream), Pin::new(&mut *client), cx)? || there_moved)
        });
        (told.received, told.sent) = (there.passed, back.passed);
        match moved {
            Err(_) => return Poll::Ready(Over::Left),
            Ok(_) if there.is_closed && back.is_closed => return Poll::Ready(Over::Left),
            Ok(true) => pace.within(Instant::now(), patience),
            Ok(false) => {}
        }
        match pace.poll(cx, Midst::Something) {
            Poll::Ready(Interruption::Overdue) => Poll::Ready(Over::Idle),
            _ => Poll::Pending,
        }
    })
    .await
}
