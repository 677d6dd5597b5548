//! Copies bytes in both directions.
//!
//! `tokio::io::copy_bidirectional` holds two buffers while a connection is open. Most tunnels are idle most
//! of the time, and here an idle tunnel has no buffer. Bytes are buffered only while one side does not accept
//! them; no more is then read from the other side, so that a slow reader slows the writer down.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Size of a read, and maximum number of buffered bytes per direction.
const CHUNK: usize = 16 * 1024;
/// Time for which a side is still read after the other side is gone. If it were closed at once, the kernel would send
/// RST, and some systems would discard data that the side has not read yet.
const LINGER: Duration = Duration::from_secs(1);

pin_project! {
    /// Copies bytes in both directions. Completes when both sides have closed, or one is gone: it neither sends nor
    /// accepts bytes. Each direction ends independently, after all of its bytes are delivered, including bytes
    /// received from a side that failed.
    pub struct BidirectionalCopy<A, B> {
        #[pin]
        client: A,
        #[pin]
        server: B,
        up: Direction,
        down: Direction,
        linger: Option<Pin<Box<Sleep>>>,
    }
}

/// Bytes copied to the server and to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesCopied {
    /// Bytes copied to the server.
    pub up: u64,
    /// Bytes copied to the client.
    pub down: u64,
}

#[derive(Default)]
struct Direction {
    state: CopyState,
    /// Bytes read and not yet written.
    unsent: Vec<u8>,
    /// Number of bytes of `unsent` that are already written.
    sent: usize,
    copied: u64,
    /// Whether the source failed. A failed source accepts no bytes either.
    has_lost_source: bool,
    error: Option<io::Error>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CopyState {
    #[default]
    Open,
    /// All bytes are written; the destination must still be shut down.
    Ending,
    /// The destination accepts no more bytes. Bytes from the source are read and discarded, so that the source does
    /// not block.
    Discarding,
    Ended,
}

impl<A, B> BidirectionalCopy<A, B> {
    /// Creates a copy between a client and a server.
    pub fn new(client: A, server: B) -> Self {
        Self { client, server, up: Direction::default(), down: Direction::default(), linger: None }
    }

    /// Bytes copied so far.
    pub(crate) fn copied(&self) -> BytesCopied {
        BytesCopied { up: self.up.copied, down: self.down.copied }
    }
}

impl<A, B> std::fmt::Debug for BidirectionalCopy<A, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BidirectionalCopy").field(&self.copied()).finish()
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
        this.up.advance(this.client.as_mut(), this.server.as_mut(), context);
        if this.up.has_lost_source {
            this.down.discard();
        }
        this.down.advance(this.server.as_mut(), this.client.as_mut(), context);
        if this.down.has_lost_source && this.up.discard() {
            this.up.advance(this.client, this.server, context);
        }
        match (this.up.state, this.down.state) {
            (CopyState::Ended, CopyState::Ended) => {}
            (CopyState::Ended | CopyState::Discarding, CopyState::Ended | CopyState::Discarding) => {
                let linger = this.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
                ready!(linger.as_mut().poll(context));
            }
            _ => return Poll::Pending,
        }
        let error = this.down.error.take().or_else(|| this.up.error.take());
        Poll::Ready(error.map_or(Ok(()), Err))
    }
}

impl Direction {
    /// Copies until the direction ends, or neither side is ready.
    fn advance(
        &mut self,
        mut from: Pin<&mut impl AsyncRead>,
        mut to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) {
        loop {
            let step = match self.state {
                CopyState::Open => self.poll_copy(from.as_mut(), to.as_mut(), context),
                CopyState::Ending => self.poll_end(to.as_mut(), context),
                CopyState::Discarding => self.poll_discard(from.as_mut(), context),
                CopyState::Ended => return,
            };
            match step {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.error.get_or_insert(error);
                    self.discard();
                }
            }
        }
    }

    /// Discards bytes that are read from now on. Returns whether they were not discarded before.
    fn discard(&mut self) -> bool {
        (self.unsent, self.sent) = (Vec::new(), 0);
        // A lost source has no more bytes to read.
        let state = if self.has_lost_source { CopyState::Ended } else { CopyState::Discarding };
        let is_change = self.state != CopyState::Ended && self.state != state;
        if is_change {
            self.state = state;
        }
        is_change
    }

    /// Writes the buffered bytes, then reads a chunk and writes it at once; the part that the destination
    /// does not accept is buffered.
    ///
    /// # Errors
    /// The destination failed.
    fn poll_copy(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        mut to: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_write(to.as_mut(), context))?;
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        let Poll::Ready(read) = from.poll_read(context, &mut chunk) else {
            // Flushes while no data is available: the other side may wait for buffered data.
            ready!(to.poll_flush(context))?;
            return Poll::Pending;
        };
        let chunk = chunk.filled();
        if chunk.is_empty() {
            self.end_source(read);
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

    /// The source sends no more.
    fn end_source(&mut self, read: io::Result<()>) {
        self.state = CopyState::Ending;
        if let Err(error) = read {
            self.has_lost_source = true;
            self.error.get_or_insert(error);
        }
    }

    /// Passes the end of the source on to the destination.
    fn poll_end(&mut self, to: Pin<&mut impl AsyncWrite>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = ready!(to.poll_shutdown(context));
        self.state = CopyState::Ended;
        if let Err(error) = ended {
            self.error.get_or_insert(error);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_discard(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        let read = ready!(from.poll_read(context, &mut chunk));
        if chunk.filled().is_empty() {
            self.has_lost_source |= read.is_err();
            self.state = CopyState::Ended;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes buffered bytes, and releases the buffer afterwards.
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
        (self.unsent, self.sent) = (Vec::new(), 0);
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
    async fn half_closed_tunnel_side_still_receives() {
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
    async fn slow_tunnel_reader_stops_writer_with_little_buffered() {
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

    /// A side that sends bytes and then fails, and accepts none.
    struct Failing(&'static [u8]);

    impl AsyncRead for Failing {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let bytes = std::mem::take(&mut self.0);
            if bytes.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            buffer.put_slice(bytes);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Failing {
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

    #[tokio::test(start_paused = true)]
    async fn tunnel_delivers_bytes_sent_before_server_failure() {
        // The pipe holds less than the message, which the client reads late.
        let (mut client, near) = duplex(4);
        let copied = tokio::spawn(BidirectionalCopy::new(near, Failing(b"the last message")));
        client.write_all(b"more").await.unwrap();
        assert_eq!(read_all(&mut client).await, b"the last message");
        // Bytes that the client still sends are discarded for a while.
        client.write_all(b"and more").await.unwrap();
        let ended = timeout(TIMEOUT, copied).await.unwrap().unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn tunnel_delivers_bytes_sent_before_client_failure() {
        let (near, mut server) = duplex(4);
        let copied = tokio::spawn(BidirectionalCopy::new(Failing(b"the last message"), near));
        server.write_all(b"more").await.unwrap();
        assert_eq!(read_all(&mut server).await, b"the last message");
        drop(server);
        assert!(timeout(TIMEOUT, copied).await.unwrap().unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_tunnel_side_ends_copy() {
        let (client, mut server, copying) = between(64);
        drop(client);
        let copied = tokio::spawn(copying);
        // Fails, since the client is gone.
        let _ = server.write_all(b"hello?").await;
        assert!(timeout(TIMEOUT, copied).await.unwrap().unwrap().is_err());
    }
}
