//! A way to a server that can be cut, and muted so that what is sent arrives and nothing comes back.

use std::sync::Arc;

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    Mute,
    Cut,
}

pub(crate) struct Proxy {
    pub(crate) address: String,
    way: Arc<watch::Sender<Way>>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let way = Arc::new(watch::Sender::new(Way::Open));
        let ways = way.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if *ways.borrow() == Way::Open
                    && let Ok(server) = TcpStream::connect(&server).await
                {
                    connections.spawn(pass(client, server, ways.subscribe()));
                }
            }
        });
        Self { address, way, task: task.abort_handle() }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, server: TcpStream, mut way: watch::Receiver<Way>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let muted = way.clone();
    let back = async move {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut bytes).await?;
            if read == 0 {
                return io::Result::Ok(());
            }
            if *muted.borrow() == Way::Open {
                to_client.write_all(&bytes[..read]).await?;
            }
        }
    };
    tokio::select! {
        _ = io::copy(&mut from_client, &mut to_server) => {}
        _ = back => {}
        _ = way.wait_for(|way| *way == Way::Cut) => {}
    }
}
