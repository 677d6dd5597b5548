//! Copies bytes in both directions.
//!
//! Unlike `tokio::io::copy_bidirectional`, which holds two buffers while a connection is open: most tunnels are idle
//! most of the time, and here an idle one has no buffer. Bytes are buffered only while one side does not accept them;
//! then no more is read from the other side, so that a slow reader slows the writer down.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of a read, and maximum buffered bytes of one direction.
const CHUNK: usize = 16 * 1024;

pin_project! {
    /// Completes when both sides have closed or one fails.
    pub(crate) struct BidirectionalCopy<A, B> {
        #[pin]
        client: A,
        #[pin]
        server: B,
        up: Direction,
        down: Direction,
    }
}

/// Bytes copied to the server and to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BytesCopied {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

#[derive(Default)]
struct Direction {
    state: CopyState,
    /// Bytes read and not yet written.
    unsent: Vec<u8>,
    /// How many of them are written.
    sent: usize,
    copied: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CopyState {
    #[default]
    Open,
    /// All is written; the reader must still be shut down.
    Ending,
    Ended,
}

impl<A, B> BidirectionalCopy<A, B> {
    pub(crate) fn new(client: A, server: B) -> Self {
        Self { client, server, up: Direction::default(), down: Direction::default() }
    }

    /// Bytes copied so far.
    pub(crate) fn copied(&self) -> BytesCopied {
        BytesCopied { up: self.up.copied, down: self.down.copied }
    }
}

impl<A, B> Future for BidirectionalCopy<A, B>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let up = this.up.poll(this.client.as_mut(), this.server.as_mut(), context)?;
        let down = this.down.poll(this.server, this.client, context)?;
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
            match self.state {
                CopyState::Open => ready!(self.poll_chunk(from.as_mut(), to.as_mut(), context))?,
                CopyState::Ending => {
                    ready!(to.as_mut().poll_shutdown(context))?;
                    self.state = CopyState::Ended;
                }
                CopyState::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads a chunk and writes it at once; the rest is buffered.
    fn poll_chunk(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        if from.poll_read(context, &mut chunk)?.is_pending() {
            // Flushes while no data is available: the other side may wait for buffered data.
            ready!(to.poll_flush(context))?;
            return Poll::Pending;
        }
        let chunk = chunk.filled();
        if chunk.is_empty() {
            self.state = CopyState::Ending;
            return Poll::Ready(Ok(()));
        }
        let written = match to.poll_write(context, chunk)? {
            Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        self.copied += written as u64;
        self.unsent.extend_from_slice(&chunk[written..]);
        Poll::Ready(Ok(()))
    }

    /// Writes buffered bytes, and then releases the buffer.
    fn poll_write(
        &mut self,
        mut to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unsent.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.unsent.len() {
            let written = ready!(to.as_mut().poll_write(context, &self.unsent[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
            self.copied += written as u64;
        }
        *self = Self { state: self.state, copied: self.copied, ..Self::default() };
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

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// A client, a server, and the copy between them.
    fn between(room: usize) -> (DuplexStream, DuplexStream, BidirectionalCopy<DuplexStream, DuplexStream>) {
        let (client, near) = duplex(room);
        let (far, server) = duplex(room);
        (client, server, BidirectionalCopy::new(near, far))
    }

    async fn read_all(stream: &mut DuplexStream) -> Vec<u8> {
        let mut all = Vec::new();
        timeout(TIMEOUT, stream.read_to_end(&mut all)).await.unwrap().unwrap();
        all
    }

    #[tokio::test]
    async fn a_half_closed_side_still_receives() {
        let (mut client, mut server, copying) = between(7);
        let copied = tokio::spawn(copying);
        client.write_all(b"a question").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_all(&mut server).await, b"a question");
        server.write_all(b"an answer").await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(read_all(&mut client).await, b"an answer");
        timeout(TIMEOUT, copied).await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_slow_reader_stops_the_writer_with_little_buffered() {
        let (mut client, mut server, copying) = between(1024);
        let mut copying = pin!(copying);
        let sent = async {
            let mut sent = 0;
            while timeout(Duration::from_millis(50), client.write_all(&[7; 512])).await.is_ok() {
                sent += 512;
            }
            sent
        };
        let sent = tokio::select! {
            ended = copying.as_mut() => panic!("{ended:?}"),
            sent = sent => sent,
        };
        assert!(sent <= CHUNK + 3 * 1024, "{sent} bytes were read for a server that does not read");
        drop(client);
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
        assert_eq!(copying.copied(), BytesCopied { up: all.len() as u64, down: 0 });
    }

    #[tokio::test]
    async fn a_failed_side_ends_the_copy() {
        let (client, mut server, copying) = between(64);
        drop(client);
        let copied = tokio::spawn(copying);
        // Fails, since the client is gone.
        let _ = server.write_all(b"hello?").await;
        assert!(timeout(TIMEOUT, copied).await.unwrap().unwrap().is_err());
    }
}
