//! Bytes from each of two sides to the other.
//!
//! Not `tokio::io::copy_bidirectional`, which keeps two buffers as long as a connection is open: most tunnels are quiet most of
//! the time, and here a quiet one has none. Bytes wait only where one side does not take what the other has sent; from then
//! on no more is read from that one, so that a slow reader slows its writer down and fills no memory.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is read at once, and the most that waits in one direction.
const PIECE: usize = 16 * 1024;

pin_project! {
    /// Ends once both sides have ended, or one breaks.
    pub(super) struct Copying<A, B> {
        #[pin]
        program: A,
        #[pin]
        server: B,
        up: Direction,
        down: Direction,
    }
}

/// Bytes carried to the server and to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

#[derive(Default)]
struct Direction {
    stage: Stage,
    /// Read and not written.
    waiting: Vec<u8>,
    /// How much of it is written.
    sent: usize,
    carried: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// All is written, and the reader has to be told that nothing follows.
    Ending,
    Ended,
}

impl<A, B> Copying<A, B> {
    pub(super) fn new(program: A, server: B) -> Self {
        Self { program, server, up: Direction::default(), down: Direction::default() }
    }

    /// What was carried so far.
    pub(super) fn carried(&self) -> Carried {
        Carried { up: self.up.carried, down: self.down.carried }
    }
}

impl<A, B> Future for Copying<A, B>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let up = this.up.poll(this.program.as_mut(), this.server.as_mut(), context)?;
        let down = this.down.poll(this.server, this.program, context)?;
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }
}

impl Direction {
    fn poll(
        &mut self,
        mut from: Pin<&mut impl AsyncRead>,
        mut to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write(to.as_mut(), context))?;
            match self.stage {
                Stage::Open => ready!(self.poll_piece(from.as_mut(), to.as_mut(), context))?,
                Stage::Ending => {
                    ready!(to.as_mut().poll_shutdown(context))?;
                    self.stage = Stage::Ended;
                }
                Stage::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads a piece and writes it at once; what is not taken waits.
    fn poll_piece(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [const { MaybeUninit::uninit() }; PIECE];
        let mut piece = ReadBuf::uninit(&mut piece);
        if from.poll_read(context, &mut piece)?.is_pending() {
            // Whoever has nothing to say now may wait for what is on its way.
            ready!(to.poll_flush(context))?;
            return Poll::Pending;
        }
        let piece = piece.filled();
        if piece.is_empty() {
            self.stage = Stage::Ending;
            return Poll::Ready(Ok(()));
        }
        let written = match to.poll_write(context, piece)? {
            Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        self.carried += written as u64;
        self.waiting.extend_from_slice(&piece[written..]);
        Poll::Ready(Ok(()))
    }

    /// Writes what waits, and gives its memory back.
    fn poll_write(
        &mut self,
        mut to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.waiting.len() {
            let written = ready!(to.as_mut().poll_write(context, &self.waiting[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
            self.carried += written as u64;
        }
        *self = Self { stage: self.stage, carried: self.carried, ..Self::default() };
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::timeout,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A program, a server, and what is between them.
    fn between(room: usize) -> (DuplexStream, DuplexStream, Copying<DuplexStream, DuplexStream>) {
        let (program, near) = duplex(room);
        let (far, server) = duplex(room);
        (program, server, Copying::new(near, far))
    }

    async fn read_all(stream: &mut DuplexStream) -> Vec<u8> {
        let mut all = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut all)).await.unwrap().unwrap();
        all
    }

    #[tokio::test]
    async fn a_side_that_has_ended_still_hears_the_other_one() {
        let (mut program, mut server, copying) = between(7);
        let copied = tokio::spawn(copying);
        program.write_all(b"a question").await.unwrap();
        program.shutdown().await.unwrap();
        assert_eq!(read_all(&mut server).await, b"a question");
        server.write_all(b"an answer").await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(read_all(&mut program).await, b"an answer");
        timeout(PATIENCE, copied).await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_does_not_read_stops_who_writes_and_little_waits() {
        let (mut program, mut server, copying) = between(1024);
        let mut copying = pin!(copying);
        let sent = async {
            let mut sent = 0;
            while timeout(Duration::from_millis(50), program.write_all(&[7; 512])).await.is_ok() {
                sent += 512;
            }
            sent
        };
        let sent = tokio::select! {
            ended = copying.as_mut() => panic!("{ended:?}"),
            sent = sent => sent,
        };
        assert!(sent <= PIECE + 3 * 1024, "{sent} bytes were taken of a program that nobody hears");
        drop(program);
        let (all, ended) = tokio::join!(
            async {
                let all = read_all(&mut server).await;
                drop(server);
                all
            },
            copying.as_mut()
        );
        assert!(all.len() >= sent && all.iter().all(|byte| *byte == 7), "{} of {sent}", all.len());
        assert!(ended.is_ok());
        assert_eq!(copying.carried(), Carried { up: all.len() as u64, down: 0 });
    }

    #[tokio::test]
    async fn one_that_breaks_ends_both() {
        let (program, mut server, copying) = between(64);
        drop(program);
        let copied = tokio::spawn(copying);
        // Nobody is there to hear it.
        let _ = server.write_all(b"anybody?").await;
        assert!(timeout(PATIENCE, copied).await.unwrap().unwrap().is_err());
    }
}
