//! Who is woken when there is room again.

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
    super::{Ask, Session},
    wire::{room, set},
};

const INITIAL_WINDOW_SIZE: u16 = 4;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Streams of one connection, and whether they were woken.
struct Streams {
    session: Session,
    woken: Vec<Arc<Woken>>,
}

impl Streams {
    fn begin(count: usize) -> Self {
        let mut session = Session::asking(Instant::now());
        let sent = [set(&[(INITIAL_WINDOW_SIZE, 1 << 20)]), room(0, 1 << 20)].concat();
        session.receive(&mut BytesMut::from(&sent[..]), Instant::now).unwrap();
        let authority = Authority::from_static("one.shop");
        let ask = Ask { method: &Method::POST, authority: &authority, path: "/", headers: &HeaderMap::new() };
        for n in 0..count {
            assert_eq!(session.ask(&ask, false) as usize, 2 * n + 1);
        }
        Self { session, woken: (0..count).map(|_| Arc::default()).collect() }
    }

    /// Whether this is said on the stream of this place.
    fn says(&mut self, place: usize, data: impl Into<Bytes>) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken[place]));
        let context = Context::from_waker(&waker);
        let said = self.session.poll_say(2 * place as u32 + 1, &mut data.into(), false, &context);
        matches!(said, Poll::Ready(Ok(())))
    }

    /// Sends what there is; the places that are woken by it.
    fn send(&mut self) -> Vec<usize> {
        let mut context = Context::from_waker(Waker::noop());
        self.session.begin_turn();
        assert!(self.session.poll_end_turn(&mut tokio::io::sink(), &mut context).is_ready());
        let woken = self.woken.iter().enumerate().filter(|(_, woken)| woken.0.swap(false, Relaxed));
        woken.map(|(place, _)| place).collect()
    }
}

#[test]
fn who_has_spoken_meanwhile_is_not_woken_in_the_place_of_one_who_waits() {
    let mut streams = Streams::begin(18);
    assert!(!streams.says(0, vec![b'x'; 100_000]), "more than is kept at once");
    for place in 1..18 {
        assert!(!streams.says(place, "x"));
    }
    assert_eq!(streams.send(), [0, 1, 2, 3, 4, 5, 6, 7]);
    // These come by themselves, and those that were woken say nothing.
    for place in 8..16 {
        assert!(streams.says(place, "x"));
    }
    assert_eq!(streams.send(), [16, 17]);
}

#[test]
fn the_mere_end_of_a_body_waits_for_nobody() {
    let mut streams = Streams::begin(2);
    assert!(!streams.says(0, vec![b'x'; 100_000]));
    let context = Context::from_waker(Waker::noop());
    let said = streams.session.poll_say(3, &mut Bytes::new(), true, &context);
    assert!(matches!(said, Poll::Ready(Ok(()))));
}
