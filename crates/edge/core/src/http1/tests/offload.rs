//! Requests that another sender takes from a connection and returns to it.

use std::{
    mem,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_calls::forwarding::SentRequest;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, duplex, split},
    time::Instant,
};

use crate::{
    http1::{
        connection::Connection, connection_end::ConnectionEnd, request_body::IncomingBody,
        request_offload::Offload, serve::serve,
    },
    shutdown::Shutdown,
};

const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// A sender that returns one request after the connection has read another one.
#[derive(Default)]
struct Sender {
    returned: Option<&'static [u8]>,
    last_completed: Option<Instant>,
    may_close: bool,
}

impl Offload for Sender {
    fn poll_request(&mut self, _: u64, has_input: bool, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        Poll::Ready(self.returned.take_if(|_| has_input).map(Vec::from))
    }

    fn take_sent(&mut self) -> Option<SentRequest> {
        None
    }

    fn note_served(&mut self, _: u64, _: Option<u64>) {}

    fn note_sent(&mut self, _: Option<usize>) {}

    fn last_completed(&self) -> Option<Instant> {
        self.last_completed
    }

    /// Refuses the first time, and allows closing afterwards.
    fn may_close(&mut self) -> bool {
        mem::replace(&mut self.may_close, true)
    }
}

async fn path(request: Request<IncomingBody<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
    Response::new(format!("<{}>", request.uri()).into())
}

/// Serves a connection with this sender until it ends. The client sends `sent`; returns what the client
/// received.
async fn received(sender: Sender, sent: &[u8]) -> String {
    let (near, mut far) = duplex(4096);
    let (reader, writer) = split(near);
    far.write_all(sent).await.unwrap();
    let connection = Connection::with_offload(reader, writer, IDLE_TIMEOUT, Some(sender));
    let ended = serve(connection, &Shutdown::default(), &path).await;
    assert!(matches!(ended, ConnectionEnd::Closed), "{ended:?}");
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn request_returned_by_kernel_is_served_before_bytes_in_socket() {
    let returned = Some(&b"GET /returned HTTP/1.1\r\nhost: a\r\n\r\n"[..]);
    let sender = Sender { returned, ..Sender::default() };
    let text = received(sender, b"GET /read HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let at = |path| text.find(path).unwrap_or_else(|| panic!("{path} is missing: {text}"));
    assert!(at("</returned>") < at("</read>"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn connection_idle_timeout_counts_from_last_kernel_request() {
    for used_after in [None, Some(IDLE_TIMEOUT / 2)] {
        let began = Instant::now();
        let last_completed = used_after.map(|after| began + after);
        let sender = Sender { last_completed, ..Sender::default() };
        received(sender, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let earliest = IDLE_TIMEOUT + used_after.unwrap_or_default();
        let open_for = began.elapsed();
        // The sender withdraws within 10 ms.
        let latest = earliest + Duration::from_millis(20);
        assert!(open_for > earliest && open_for < latest, "{open_for:?}, {used_after:?}");
    }
}
