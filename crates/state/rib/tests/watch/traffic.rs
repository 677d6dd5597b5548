use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use fairmesh_rib::MAX_VALUE_BYTES;
use fairmesh_wire::{
    transport::Address,
    v1::{self, watch_request, watch_response::Kind},
    watch::Watch,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::support::{BOUND, Memory, Reader, Server};

/// Relays one connection, and counts the bytes from the server.
async fn counting_relay(server: &Address) -> (Address, Arc<AtomicU64>) {
    let Address::Tcp(server) = server.clone() else { panic!("a TCP server") };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        let (mut client_out, mut client_in) = listener.accept().await.unwrap().0.into_split();
        let (mut server_out, mut server_in) = TcpStream::connect(server).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut client_out, &mut server_in).await });
        let mut buffer = vec![0; 65536];
        while let Ok(bytes @ 1..) = server_out.read(&mut buffer).await {
            counted.fetch_add(bytes as u64, Ordering::SeqCst);
            if client_in.write_all(&buffer[..bytes]).await.is_err() {
                return;
            }
        }
    });
    (address, count)
}

#[tokio::test]
async fn watch_sends_nothing_while_followed_keys_are_unchanged() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let (address, count) = counting_relay(&server.address).await;
    let mut reader = Reader::following(&[&address], &["/a/"]).await;
    let before = count.load(Ordering::SeqCst);
    for i in 0..10_000 {
        memory.put(&[("/b/1", &i.to_string())]);
        if i % 100 == 0 {
            // Gives the server every chance to send something.
            tokio::task::yield_now().await;
        }
    }
    memory.put(&[("/a/1", "x")]);
    let update = reader.update().await;
    assert_eq!(
        (update.revision.number, update.puts.len()),
        (10_001, 1),
        "the first message since the snapshot"
    );
    let sent = count.load(Ordering::SeqCst) - before;
    assert!(sent < 256, "{sent} bytes for one change of 5 bytes among 10,000 others");
    server.stop().await;
}

#[tokio::test]
async fn idle_watch_reader_gets_progress_before_log_drops_its_revision() {
    let (_folder, path) = crate::socket();
    let memory = Memory {
        node: fairmesh_rib::Node::with_table(fairmesh_model::StoreId(1), fairmesh_rib::Table::new(10)),
    };
    let server = Server::start(memory.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    for i in 0..5 {
        memory.put(&[("/b/1", &i.to_string())]);
    }
    let progress = reader.update().await;
    assert_eq!((progress.revision.number, progress.puts.len(), progress.snapshots.len()), (5, 0, 0));
    server.stop().await;
    for i in 5..14 {
        memory.put(&[("/b/1", &i.to_string())]);
    }
    let server = Server::start(memory, &path).await;
    let update = reader.update().await;
    assert_eq!((update.resumed.len(), update.snapshots.len()), (1, 0));
    server.stop().await;
}

#[tokio::test]
async fn slow_watch_reader_gets_latest_values_instead_of_every_change() {
    const WRITES: u64 = 200;
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut watch = Watch::open(&Default::default(), &server.address, "sleeper").await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/a/".into(), ..Default::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    let first = timeout(BOUND, watch.next()).await.unwrap().unwrap();
    assert!(matches!(first.kind, Some(Kind::Snapshot(_))));
    for i in 0..WRITES {
        let mut value = vec![0; MAX_VALUE_BYTES];
        value[..8].copy_from_slice(&i.to_le_bytes());
        memory.commit([("/a/1", Some(Bytes::from(value)))]);
        tokio::task::yield_now().await;
    }
    let (mut messages, mut last) = (0, 0);
    while last < WRITES {
        let message = timeout(BOUND, watch.next()).await.unwrap().unwrap();
        let Some(Kind::Delta(delta)) = message.kind else { panic!("only deltas follow") };
        last = delta.revision.unwrap().number;
        messages += 1;
    }
    assert!(messages < WRITES / 4, "{messages} messages for {WRITES} writes of one key");
    server.stop().await;
}
