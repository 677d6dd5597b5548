//! The minimum cost of any proxy: bytes of each connection are forwarded to a separate connection to an endpoint and
//! back, without parsing. A request takes the same four system calls as in an HTTP/1.1 proxy: two reads and two writes.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::BoxError;

thread_local! {
    /// Shared by all connections, so that it stays in the processor cache.
    static PIECE: RefCell<Vec<u8>> = RefCell::new(vec![0; 128 * 1024]);
}

/// Forwards connections to these endpoints in turn, until the process is ended.
pub(super) async fn run(listen: SocketAddr, to: &[SocketAddr]) -> Result<(), BoxError> {
    let listener = TcpListener::bind(listen).await?;
    for to in to.iter().cycle() {
        let (near, _) = listener.accept().await?;
        let far = TcpStream::connect(to).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::spawn(pass(near_in, far_out));
        tokio::spawn(pass(far_in, near_out));
    }
    Err("there is nobody to pass connections on to".into())
}

/// Forwards one direction, until it ends or breaks.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    loop {
        match poll_fn(|context| step(&mut from, &mut to, context)).await? {
            Step::Ended => return Ok(()),
            Step::Done => {}
            Step::Left(rest) => to.write_all(&rest).await?,
        }
    }
}

enum Step {
    /// All received bytes were written.
    Done,
    /// Bytes that could not be written yet.
    Left(Vec<u8>),
    Ended,
}

/// Reads available bytes and writes them.
fn step(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    context: &mut Context<'_>,
) -> Poll<io::Result<Step>> {
    PIECE.with_borrow_mut(|piece| {
        let mut piece = ReadBuf::new(piece);
        ready!(Pin::new(from).poll_read(context, &mut piece))?;
        if piece.filled().is_empty() {
            return Poll::Ready(Ok(Step::Ended));
        }
        let written = match Pin::new(to).poll_write(context, piece.filled()) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        let left = &piece.filled()[written..];
        Poll::Ready(Ok(if left.is_empty() { Step::Done } else { Step::Left(left.to_vec()) }))
    })
}
