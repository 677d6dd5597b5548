//! Selection of the streams to wake when a window opens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, uri::Authority};
use tokio::time::Instant;

use super::{
    super::{RequestHead, Session},
    wire::{settings_frame, window_update},
};

const INITIAL_WINDOW_SIZE: u16 = 4;

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Streams of one connection, with flags that show which of them were woken.
struct Streams {
    session: Session,
    woken: Vec<Arc<WakeFlag>>,
}

impl Streams {
    fn begin(count: usize) -> Self {
        let mut session = Session::client(Instant::now());
        let sent = [settings_frame(&[(INITIAL_WINDOW_SIZE, 1 << 20)]), window_update(0, 1 << 20)].concat();
        session.receive(&mut BytesMut::from(&sent[..]), Instant::now).unwrap();
        let authority = Authority::from_static("one.shop");
        let ask = RequestHead {
            method: &Method::POST,
            authority: &authority,
            path: "/",
            headers: &HeaderMap::new(),
        };
        for n in 0..count {
            assert_eq!(session.open_stream(&ask, false) as usize, 2 * n + 1);
        }
        Self { session, woken: (0..count).map(|_| Arc::default()).collect() }
    }

    /// Whether the stream at this index accepts all of the data.
    fn says(&mut self, index: usize, data: impl Into<Bytes>) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken[index]));
        let context = Context::from_waker(&waker);
        let raw_frame = self.session.poll_send_data(2 * index as u32 + 1, &mut data.into(), false, &context);
        matches!(raw_frame, Poll::Ready(Ok(())))
    }

    /// Sends the buffered frames. Returns the indices of the streams that were woken.
    fn send(&mut self) -> Vec<usize> {
        let mut context = Context::from_waker(Waker::noop());
        self.session.begin_turn();
        assert!(self.session.poll_end_turn(&mut tokio::io::sink(), &mut context).is_ready());
        let woken = self.woken.iter().enumerate().filter(|(_, woken)| woken.0.swap(false, Relaxed));
        woken.map(|(index, _)| index).collect()
    }
}

#[test]
fn finished_stream_takes_no_send_turn_from_waiting_streams() {
    let mut streams = Streams::begin(18);
    assert!(!streams.says(0, vec![b'x'; 100_000]), "more than is kept at once");
    for index in 1..18 {
        assert!(!streams.says(index, "x"));
    }
    assert_eq!(streams.send(), [0, 1, 2, 3, 4, 5, 6, 7]);
    // These streams send without being woken, and the woken streams send nothing.
    for index in 8..16 {
        assert!(streams.says(index, "x"));
    }
    assert_eq!(streams.send(), [16, 17]);
}

#[test]
fn empty_end_of_stream_is_sent_without_send_window() {
    let mut streams = Streams::begin(2);
    assert!(!streams.says(0, vec![b'x'; 100_000]));
    let context = Context::from_waker(Waker::noop());
    let raw_frame = streams.session.poll_send_data(3, &mut Bytes::new(), true, &context);
    assert!(matches!(raw_frame, Poll::Ready(Ok(()))));
}
