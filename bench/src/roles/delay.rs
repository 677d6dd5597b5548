//! A network that is long: bytes of each connection arrive after a while, each way, in order, as many of them as there are.

use std::{io, net::SocketAddr, time::Duration};

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

/// Pieces of a connection that are on their way at a time.
const PIECES: usize = 1024;

/// Passes connections on until it is ended.
pub(super) async fn run(listen: SocketAddr, to: SocketAddr, delay: Duration) -> Result<(), BoxError> {
    let listener = TcpListener::bind(listen).await?;
    println!("ready");
    loop {
        let (near, _) = listener.accept().await?;
        let far = TcpStream::connect(to).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::spawn(pass(near_in, far_out, delay));
        tokio::spawn(pass(far_in, near_out, delay));
    }
}

/// One direction, until it ends or breaks.
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
