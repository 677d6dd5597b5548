use std::{
    collections::VecDeque, future::pending, pin::pin, sync::atomic::AtomicUsize,
    sync::atomic::Ordering::Relaxed, task::Wake,
};

use tokio::io::AsyncWriteExt as _;

use super::*;

/// Keeps each write apart, and takes so many bytes more.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<Vec<u8>>, usize)>>);

impl Log {
    fn with_room(room: usize) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), room))))
    }

    fn writes(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().0.clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.writes().iter().map(Vec::len).collect()
    }

    fn make_room(&self, room: usize) {
        self.0.lock().unwrap().1 = room;
    }
}

impl AsyncWrite for Log {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut log = self.0.lock().unwrap();
        let mut bytes = parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>();
        bytes.truncate(log.1);
        if bytes.is_empty() {
            return Poll::Pending;
        }
        let size = bytes.len();
        log.1 -= size;
        log.0.push(bytes);
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Gives these pieces, at most one at a time, counts how often it is asked, and then waits; an empty one is its end.
struct Pieces(VecDeque<Vec<u8>>, usize);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.1 += 1;
        let Some(mut piece) = self.0.pop_front() else { return Poll::Pending };
        let rest = piece.split_off(piece.len().min(buffer.remaining()));
        buffer.put_slice(&piece);
        if !rest.is_empty() {
            self.0.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

/// Breaks at the first write.
struct Broken;

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn context() -> Context<'static> {
    Context::from_waker(std::task::Waker::noop())
}

#[test]
fn what_is_written_in_one_turn_goes_out_in_one_piece_after_it() {
    let log = Log::with_room(usize::MAX);
    let (mut io, outlet) = gathered(log.clone());
    let seen = log.clone();
    let mut connection = pin!(async move {
        for byte in 0..10 {
            io.write_all(&[byte; 1000]).await.unwrap();
            io.flush().await.unwrap();
        }
        assert_eq!(seen.sizes(), [0; 0]);
        pending::<()>().await;
    });
    assert!(pin!(outlet.drive(connection.as_mut())).poll(&mut context()).is_pending());
    let all = (0..10).flat_map(|byte| [byte; 1000]).collect::<Vec<u8>>();
    assert_eq!(log.writes(), [all]);
    assert_eq!(lock(&outlet.0).bytes.capacity(), 0, "one that waits holds no memory");
    assert!(pin!(outlet.drive(connection.as_mut())).poll(&mut context()).is_pending());
    assert_eq!(log.sizes().len(), 1);
}

#[test]
fn large_pieces_are_not_copied_and_stay_in_order() {
    let log = Log::with_room(usize::MAX);
    let (mut io, outlet) = gathered(log.clone());
    let mut connection = pin!(async move {
        io.write_all(b"head").await.unwrap();
        io.write_all(&[7; LARGE]).await.unwrap();
        io.write_all(b"tail").await.unwrap();
        pending::<()>().await;
    });
    assert!(pin!(outlet.drive(connection.as_mut())).poll(&mut context()).is_pending());
    assert_eq!(log.sizes(), [4 + LARGE, 4]);
    assert_eq!(log.writes()[0][..5], *b"head\x07");
}

#[test]
fn no_more_is_kept_than_there_is_room_for_where_the_other_end_takes_nothing() {
    let log = Log::default();
    let (mut io, outlet) = gathered(log.clone());
    let mut connection = pin!(async move {
        for _ in 0..1000 {
            io.write_all(&[7; 1000]).await.unwrap();
        }
        io.shutdown().await.unwrap();
    });
    let mut driven = pin!(outlet.drive(connection.as_mut()));
    assert!(driven.as_mut().poll(&mut context()).is_pending());
    let kept = lock(&outlet.0).bytes.len();
    assert!((ROOM - 1000..=ROOM).contains(&kept), "{kept}");
    log.make_room(10);
    assert!(driven.as_mut().poll(&mut context()).is_pending());
    assert_eq!(log.sizes(), [10]);
    log.make_room(usize::MAX);
    assert!(driven.as_mut().poll(&mut context()).is_ready());
    assert_eq!(log.sizes().iter().sum::<usize>(), 1_000_000);
}

#[test]
fn a_connection_hears_of_what_could_not_be_written() {
    let (mut io, outlet) = gathered(Broken);
    let mut connection = pin!(async move {
        io.write_all(b"tea").await.unwrap();
        tokio::task::yield_now().await;
        io.flush().await
    });
    let woken = Arc::<Woken>::default();
    let waker = Arc::clone(&woken).into();
    let mut context = Context::from_waker(&waker);
    let mut driven = pin!(outlet.drive(connection.as_mut()));
    assert!(driven.as_mut().poll(&mut context).is_pending());
    assert!(woken.0.load(Relaxed) > 0);
    let Poll::Ready(ended) = driven.as_mut().poll(&mut context) else { panic!("it waits") };
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn whoever_goes_on_with_the_connection_writes_at_once() {
    let log = Log::with_room(usize::MAX);
    let (mut io, outlet) = gathered(log.clone());
    let mut connection = pin!(async move {
        io.write_all(b"switched").await.unwrap();
        io
    });
    let mut io = outlet.drive(connection.as_mut()).await;
    assert_eq!(log.writes(), [b"switched"]);
    io.write_all(b"tea").await.unwrap();
    assert_eq!(log.writes()[1], b"tea");
}

#[test]
fn what_has_come_is_read_at_once_and_given_as_it_is_asked_for() {
    let sent: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
    let (one, other) = sent.split_at(40_000);
    let pieces = Pieces([one.to_vec(), other.to_vec()].into(), 0);
    let (mut io, outlet) = gathered(pieces);
    let mut got = Vec::new();
    loop {
        let mut room = [0; 8192];
        let mut room = ReadBuf::new(&mut room);
        if Pin::new(&mut io).poll_read(&mut context(), &mut room).is_pending() {
            break;
        }
        got.extend_from_slice(room.filled());
    }
    assert_eq!(got, sent);
    let kept = lock(&outlet.0);
    assert_eq!(kept.ahead.io.1, 3, "once for each piece, and once in vain");
    assert_eq!(kept.ahead.bytes.capacity(), 0, "one that waits holds no memory");
}

#[test]
fn the_end_is_told_after_everything_before_it() {
    let (mut io, _outlet) = gathered(Pieces([b"tea".to_vec(), Vec::new()].into(), 0));
    let mut read = |room: usize| {
        let mut room = vec![0; room];
        let mut room = ReadBuf::new(&mut room);
        let polled = Pin::new(&mut io).poll_read(&mut context(), &mut room);
        polled.map(|read| (read.unwrap(), room.filled().to_vec()).1)
    };
    assert_eq!(read(2), Poll::Ready(b"te".to_vec()));
    assert_eq!(read(2), Poll::Ready(b"a".to_vec()));
    assert_eq!(read(2), Poll::Ready(Vec::new()));
    assert_eq!(read(2), Poll::Pending);
}
