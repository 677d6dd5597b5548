//! A TCP relay that delays every byte: it simulates distances between regions on one machine.
//!
//! Delaying packets in the kernel would need root and a module that many machines lack; a relay needs neither.

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::tls_records::{RecordReader, RelayCounts};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::mpsc,
    time::Instant,
};

/// Maximum number of reads in flight in one direction. When it is reached, the sender is slowed down, as by a full
/// link.
const IN_FLIGHT: usize = 512;
/// Maximum size of a read.
const MAX_READ: usize = 16 * 1024;

/// One-way delay for a caller, by its source address.
pub(super) type DelayFn = Arc<dyn Fn(IpAddr) -> Duration + Send + Sync>;

/// Accepts connections and relays each to `target`.
///
/// Only TLS passes: a connection is cut at the first byte of anything else.
pub(super) async fn serve(
    listener: TcpListener,
    target: std::net::SocketAddr,
    distance: DelayFn,
    counts: Arc<RelayCounts>,
) {
    loop {
        let Ok((near, peer)) = listener.accept().await else {
            // Out of file descriptors: other connections must close before another accept can succeed.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (delay, counts) = (distance(peer.ip()), Arc::clone(&counts));
        tokio::spawn(async move {
            if let Ok(far) = TcpStream::connect(target).await {
                join(near, far, delay, &counts).await;
            }
        });
    }
}

async fn join(near: TcpStream, far: TcpStream, delay: Duration, counts: &RelayCounts) {
    // Nagle's algorithm would add its own delays.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    counts.add_connection();
    tokio::join!(pump(near_in, far_out, delay, counts), pump(far_in, near_out, delay, counts));
}

async fn pump(from: tcp::OwnedReadHalf, to: tcp::OwnedWriteHalf, delay: Duration, counts: &RelayCounts) {
    let (queue, held) = mpsc::channel(IN_FLIGHT);
    tokio::join!(read(from, (queue, delay), counts), write(held, to));
}

async fn read(
    mut from: tcp::OwnedReadHalf,
    (queue, delay): (mpsc::Sender<(Instant, Bytes)>, Duration),
    counts: &RelayCounts,
) {
    let mut buffer = BytesMut::with_capacity(MAX_READ);
    let mut records = RecordReader::default();
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        if !records.is_tls(&buffer, counts) {
            tracing::error!(
                "something else than TLS arrived at the relay between regions; it is not passed on"
            );
            return;
        }
        if queue.send((Instant::now() + delay, buffer.split().freeze())).await.is_err() {
            return;
        }
        buffer.reserve(MAX_READ);
    }
}

async fn write(mut held: mpsc::Receiver<(Instant, Bytes)>, mut to: tcp::OwnedWriteHalf) {
    while let Some((due, bytes)) = held.recv().await {
        // The timer rounds up to a millisecond, which is long within a region.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // An error here means that the other side is closed already.
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn relay_delivers_all_bytes_after_delay() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = echo.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = echo.accept().await {
                let (mut from, mut to) = socket.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            }
        });
        let border = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = border.local_addr().unwrap();
        let counts = Arc::<RelayCounts>::default();
        tokio::spawn(serve(border, target, Arc::new(|_| Duration::from_millis(20)), Arc::clone(&counts)));

        let mut caller = TcpStream::connect(address).await.unwrap();
        let record = |n: u8| [&[23, 3, 3, 0x40, 0][..], &[n; 0x4000]].concat();
        let sent: Vec<u8> = (0..12).flat_map(record).collect();
        let start = Instant::now();
        let (mut from, mut to) = caller.split();
        let writer = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(writer, from.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent, "what arrives must be what was sent");
        assert!(start.elapsed() >= Duration::from_millis(40), "there and back is twice the delay");
        assert_eq!((counts.seen().records, counts.seen().plaintext), (24, 0));

        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        caller.shutdown().await.unwrap();
        let mut received = Vec::new();
        let _ = caller.read_to_end(&mut received).await;
        assert!(received.is_empty(), "plaintext does not pass");
        assert_eq!(counts.seen().plaintext, 1);
    }
}
