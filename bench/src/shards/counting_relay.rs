use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_wire::transport::Address;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
};

/// Forwards connections and counts their bytes.
pub(super) struct Relay {
    address: Address,
    down: Arc<AtomicU64>,
    up: Arc<AtomicU64>,
}

impl Relay {
    /// Forwards to `upstream` until the runtime ends.
    pub(super) async fn start(upstream: Address) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = Address::Tcp(listener.local_addr()?.to_string());
        let (down, up) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&down), Arc::clone(&up));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(upstream.to_string()).await else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(far_in, near_out, Arc::clone(&counts.0)));
                tokio::spawn(pass(near_in, far_out, Arc::clone(&counts.1)));
            }
        });
        Ok(Self { address, down, up })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Bytes received from the upstream so far, and sent to it.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.down.load(Relaxed), self.up.load(Relaxed))
    }
}

async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, count: Arc<AtomicU64>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        count.fetch_add(read as u64, Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
