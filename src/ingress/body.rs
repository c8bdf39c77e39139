//! Request bodies, read whole up to a limit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};

use crate::clock::{self, Alarm};
use crate::event_log::{Quota, Reservation};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Present, RequestFacts};

/// Time to keep reading a refused body, so that its sender can read the refusal before the
/// connection closes.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes of a refused body that are still read, in multiples of the limit.
const LINGER_BODIES: usize = 4;

/// Time without a byte that ends the wait for a body, as in nginx. It also ends after this time
/// plus one second for each [`LEAST_RATE`] bytes received, so that a slow sender cannot hold it
/// open.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lowest rate in bytes per second. A poor phone line is faster.
const LEAST_RATE: usize = 512;

/// Returns the whole body, of at most `limit` bytes. Bytes that come in several pieces are reserved
/// in `quota` meanwhile; `evict_for` decides whether they may grow.
///
/// # Errors
/// `BodyTooLarge`; `BodyTooSlow`; the error of `evict_for`; `BadRequest` if the body broke off,
/// which no client reads.
pub(super) async fn read<B: Body<Data = Bytes> + Unpin>(
    headers: &HeaderMap,
    facts: &RequestFacts,
    mut body: B,
    limit: usize,
    quota: &Arc<Quota>,
    evict_for: impl Fn(&Reservation) -> Result<(), ErrorCode>,
) -> Result<Bytes, ErrorCode> {
    if body.size_hint().lower() > limit as u64 {
        // A client that waits for `100 Continue` has sent nothing yet.
        if !headers.contains_key(EXPECT) {
            linger(body, limit).await;
        }
        return Err(ErrorCode::BodyTooLarge);
    }
    let expected = if facts.has(Present::ContentLength) { body.size_hint().lower() as usize } else { 0 };
    let mut whole = BytesMut::new();
    let mut held: Option<Reservation> = None;
    let mut pace = Pace::default();
    while let Some(frame) = pace.next(&mut body, whole.len()).await? {
        let Ok(data) = frame.map_err(|_| ErrorCode::BadRequest)?.into_data() else { continue };
        if whole.is_empty() && data.len() == expected {
            let _held = if body.is_end_stream() { None } else { Some(quota.reserve(expected)) };
            return wait_for_end(&mut body, &mut pace, expected).await.map(|()| data);
        }
        if whole.len() + data.len() > limit {
            linger(body, limit).await;
            return Err(ErrorCode::BodyTooLarge);
        }
        whole.extend_from_slice(&data);
        let held = held.get_or_insert_with(|| quota.reserve(0));
        held.set(whole.capacity());
        if let Err(code) = evict_for(held) {
            linger(body, limit).await;
            return Err(code);
        }
    }
    Ok(whole.freeze())
}

/// Waits for the end of a body after `read` bytes, the length in its head. An HTTP/2 client may
/// send the end in a frame of its own. An earlier response stops it from sending more ([RFC 9113
/// §8.1]), which some clients take for a broken request.
///
/// [RFC 9113 §8.1]: https://www.rfc-editor.org/rfc/rfc9113#section-8.1
async fn wait_for_end<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    pace: &mut Pace,
    read: usize,
) -> Result<(), ErrorCode> {
    while !body.is_end_stream() {
        match pace.next(body, read).await? {
            Some(Ok(frame)) if frame.data_ref().is_some_and(|data| !data.is_empty()) => {
                return Err(ErrorCode::BadRequest);
            }
            Some(Ok(_)) => {}
            Some(Err(_)) => return Err(ErrorCode::BadRequest),
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Pace of a body.
#[derive(Default)]
struct Pace {
    began: Option<Instant>,
    alarm: Alarm,
}

impl Pace {
    /// Returns the next frame of a body after `read` bytes. A complete body costs no timer.
    async fn next<B: Body + Unpin>(&mut self, body: &mut B, read: usize) -> Result<NextFrame<B>, ErrorCode> {
        let mut waits = false;
        poll_fn(|cx| {
            if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                return Poll::Ready(Ok(frame));
            }
            if !waits {
                waits = true;
                let now = clock::now();
                let began = *self.began.get_or_insert(now);
                let slowest = Duration::from_secs((read / LEAST_RATE) as u64);
                self.alarm.set(Some((now + PATIENCE).min(began + PATIENCE + slowest)));
            }
            self.alarm.poll(cx).map(|()| Err(ErrorCode::BodyTooSlow))
        })
        .await
    }
}

/// Next frame of a body, or `None` at its end.
type NextFrame<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

async fn linger<B: Body<Data = Bytes> + Unpin>(mut body: B, limit: usize) {
    let mut left = limit.saturating_mul(LINGER_BODIES);
    let drain = async {
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // The sender may not have stopped in time.
    let _ = tokio::time::timeout(LINGER, drain).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use http::header::CONTENT_LENGTH;
    use hyper::body::SizeHint;
    use tokio::sync::mpsc;

    use super::*;
    use crate::event_log::Metrics;
    use crate::event_log::{QuotaKey, QuotaLimits, Quotas};
    use crate::metrics::Registrar;

    const LIMIT: usize = 100_000;

    /// A body whose pieces a test sends.
    struct Sent(mpsc::UnboundedReceiver<Bytes>);

    impl Body for Sent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame<Self>> {
            self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
        }
    }

    /// A body with a length in its head, and an end that may come in a frame of its own.
    struct Promised(Sent, u64);

    impl Body for Promised {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame<Self>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.1)
        }
    }

    fn quota() -> Arc<Quota> {
        let allowance = QuotaLimits {
            max_bytes: 80_000,
            max_bytes_total: 1 << 20,
            max_streams: 1,
            max_detached: 1,
            max_tasks: 64,
            resumes_per_sec: 1,
            delivered_retention: Duration::ZERO,
            max_sessions: 1,
        };
        let quotas = Quotas::new(allowance, Arc::new(Metrics::new(&Registrar::default()).unwrap()));
        quotas.of(QuotaKey::Known([0; 16]))
    }

    /// Reads the sent body. Returns the result, its duration, and the largest number of reserved
    /// bytes meanwhile.
    async fn read_sent(
        send: impl AsyncFnOnce(mpsc::UnboundedSender<Bytes>),
    ) -> (Result<Bytes, ErrorCode>, Duration, usize) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let quota = quota();
        let most = std::cell::Cell::new(0);
        let evict_for = |reservation: &Reservation| {
            most.set(most.get().max(reservation.quota().bytes()));
            if reservation.quota().is_exceeded() { Err(ErrorCode::ShareFull) } else { Ok(()) }
        };
        let began = clock::now();
        let headers = HeaderMap::new();
        let reading = async {
            let read = read(&headers, &RequestFacts::of(&headers), Sent(receiver), LIMIT, &quota, evict_for).await;
            (read, clock::now() - began)
        };
        let ((read, took), ()) = tokio::join!(reading, send(sender));
        assert_eq!(quota.bytes(), 0, "nothing is held any more");
        (read, took, most.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_in_pieces_is_held_while_it_comes() {
        let (read, _, held) = read_sent(async |sender| {
            for _ in 0..10 {
                sender.send(vec![b'x'; 1000].into()).unwrap();
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        })
        .await;
        assert_eq!(read.unwrap().len(), 10_000);
        assert!((10_000..30_000).contains(&held), "{held}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_whole_at_its_end_with_any_declared_length() {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, 5.into())]);
        let (sender, receiver) = mpsc::unbounded_channel();
        let quota = quota();
        let facts = RequestFacts::of(&headers);
        let mut reading = pin!(read(&headers, &facts, Promised(Sent(receiver), 5), LIMIT, &quota, |_| Ok(())));
        sender.send("12345".into()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(reading.as_mut().poll(&mut cx).is_pending(), "its end has not come");
        assert_eq!(quota.bytes(), 5);
        drop(sender);
        assert_eq!(reading.await.unwrap(), "12345");
        assert_eq!(quota.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_given_up_after_a_minute() {
        let (read, took, _) = read_sent(async |sender| {
            sender.send(vec![b'x'; 30_000].into()).unwrap();
            tokio::time::sleep(Duration::from_secs(50)).await;
            sender.send("x".into()).unwrap();
            sender.closed().await;
        })
        .await;
        assert_eq!(read, Err(ErrorCode::BodyTooSlow));
        assert_eq!(took, Duration::from_secs(110));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_when_it_is_too_slow_in_all() {
        let (read, took, _) = read_sent(async |sender| {
            while sender.send(vec![b'x'; 100].into()).is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .await;
        assert_eq!(read, Err(ErrorCode::BodyTooSlow));
        // One minute, and the extra time for 100 bytes per second.
        assert!((70..80).contains(&took.as_secs()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_room_is_refused_and_one_over_its_bound_as_well() {
        let (read, ..) = read_sent(async |sender| {
            for _ in 0..90 {
                let _ = sender.send(vec![b'x'; 1000].into());
            }
        })
        .await;
        assert_eq!(read, Err(ErrorCode::ShareFull));
        let (read, ..) = read_sent(async |sender| {
            let _ = sender.send(vec![b'x'; LIMIT + 1].into());
        })
        .await;
        assert_eq!(read, Err(ErrorCode::BodyTooLarge));
    }
}
