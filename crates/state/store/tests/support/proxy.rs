//! A TCP proxy whose link can be cut, or muted so that requests arrive but responses are lost.

use std::sync::Arc;

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    Mute,
    Cut,
}

pub(crate) struct Proxy {
    pub(crate) address: String,
    link: Arc<watch::Sender<Link>>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = Arc::new(watch::Sender::new(Link::Open));
        let links = link.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if *links.borrow() == Link::Open
                    && let Ok(server) = TcpStream::connect(&server).await
                {
                    connections.spawn(pass(client, server, links.subscribe()));
                }
            }
        });
        Self { address, link, task: task.abort_handle() }
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, server: TcpStream, mut link: watch::Receiver<Link>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let muted = link.clone();
    let back = async move {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut bytes).await?;
            if read == 0 {
                return io::Result::Ok(());
            }
            if *muted.borrow() == Link::Open {
                to_client.write_all(&bytes[..read]).await?;
            }
        }
    };
    tokio::select! {
        _ = io::copy(&mut from_client, &mut to_server) => {}
        _ = back => {}
        _ = link.wait_for(|link| *link == Link::Cut) => {}
    }
}
