//! A network with a delay: the bytes of each connection arrive later in both directions, in order and without a limit
//! of bandwidth.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::BoxError;

/// Maximum number of chunks in flight per direction of a connection.
const PIECES: usize = 1024;

/// Forwards connections until the process is ended.
pub(super) async fn run(listen: SocketAddr, to: SocketAddr, delay: Duration) -> Result<(), BoxError> {
    let listener = TcpListener::bind(listen).await?;
    println!("ready");
    Ok(forward(listener, to, |_| delay).await?)
}

/// Forwards connections until accepting one fails. Each direction has a delay that depends on the caller's address.
pub(super) async fn forward(
    listener: TcpListener,
    to: SocketAddr,
    delay: impl Fn(IpAddr) -> Duration,
) -> io::Result<()> {
    loop {
        let (near, caller) = listener.accept().await?;
        let delay = delay(caller.ip());
        let far = TcpStream::connect(to).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::spawn(pass(near_in, far_out, delay));
        tokio::spawn(pass(far_in, near_out, delay));
    }
}

/// Forwards one direction, until it ends or breaks.
async fn pass(from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> io::Result<()> {
    let (pieces, mut arriving) = mpsc::channel(PIECES);
    tokio::spawn(read(from, pieces, delay));
    while let Some((due, piece)) = arriving.recv().await {
        sleep_until(due).await;
        to.write_all(&piece).await?;
    }
    to.shutdown().await
}

async fn read(mut from: OwnedReadHalf, pieces: mpsc::Sender<(Instant, Bytes)>, delay: Duration) {
    loop {
        let mut piece = BytesMut::with_capacity(16 << 10);
        // A connection that breaks ends here too.
        if !matches!(from.read_buf(&mut piece).await, Ok(1..)) {
            return;
        }
        if pieces.send((Instant::now() + delay, piece.freeze())).await.is_err() {
            return;
        }
    }
}
