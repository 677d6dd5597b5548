use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;

fn options() -> KeptOptions {
    KeptOptions::new("proxy", [("--listen", "127.0.0.1:7410".to_owned())])
}

async fn listeners(count: usize) -> Vec<TcpListener> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    all
}

#[tokio::test]
async fn new_proxy_gets_all_sockets_and_old_one_serves_until_it_is_ready() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("made/proxy.sock");
    assert!(Predecessor::find(&path, &options()).await.unwrap().is_none());
    // More sockets than one message can carry.
    let ours = listeners(MAX_DESCRIPTORS + 3).await;
    let addresses: Vec<_> = ours.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let handover = Handover::open((&path, &options()), Inherited::default(), &ours).unwrap();
    let succession = async {
        let (gives_up, _) = Predecessor::find(&path, &options()).await.unwrap().unwrap();
        drop(gives_up);
        let (predecessor, mut inherited) = Predecessor::find(&path, &options()).await.unwrap().unwrap();
        for address in &addresses {
            assert_eq!(inherited.take(*address).unwrap().local_addr().unwrap(), *address);
        }
        assert!(inherited.take(addresses[0]).is_none(), "each is there once");
        let waits = tokio::spawn(predecessor.take_over());
        (inherited, waits)
    };
    let (successor, (inherited, waits)) = tokio::join!(handover.wait_successor(), succession);
    assert!(!waits.is_finished(), "it waits until the predecessor has stopped");
    drop(handover);
    successor.confirm_stopped().await;
    waits.await.unwrap();

    let next = Handover::open((&path, &options()), inherited, &ours[..1]).unwrap();
    let found = async { Predecessor::find(&path, &options()).await.unwrap().is_some() };
    tokio::select! {
        found = found => assert!(found, "the same socket leads to the successor"),
        _ = next.wait_successor() => panic!("no successor reported that it serves"),
    }
}

#[tokio::test]
async fn invalid_handover_peer_is_refused_and_regular_file_not_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("proxy.sock");
    let ours = listeners(1).await;
    let handover = Handover::open((&path, &options()), Inherited::default(), &ours).unwrap();
    let intruder = async {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        // The connection is closed or reset without any data.
        let _ = stream.read_to_end(&mut response).await;
        assert!(response.is_empty());
    };
    tokio::select! {
        () = intruder => {}
        _ = handover.wait_successor() => panic!("no proxy took over"),
    }
    let address = ours[0].local_addr().unwrap();
    let (connected, accepted) = tokio::join!(TcpStream::connect(address), ours[0].accept());
    assert!(connected.is_ok() && accepted.is_ok());

    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(Handover::open((&file, &options()), Inherited::default(), &ours).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[tokio::test]
async fn handover_socket_of_dead_proxy_is_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("proxy.sock");
    drop(Handover::open((&path, &options()), Inherited::default(), &[]).unwrap());
    assert!(path.exists() && Predecessor::find(&path, &options()).await.unwrap().is_none());
    let again = Handover::open((&path, &options()), Inherited::default(), &[]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
    drop(again);
}

#[tokio::test]
async fn successor_without_listener_of_running_proxy_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("proxy.sock");
    let handover = Handover::open((&path, &options()), Inherited::default(), &listeners(1).await).unwrap();
    let other = KeptOptions::new("proxy", [("--listen", "127.0.0.1:7412".to_owned())]);
    tokio::select! {
        found = Predecessor::find(&path, &other) => {
            let refused = found.unwrap_err().to_string();
            assert!(refused.contains("127.0.0.1:7410") && refused.contains("127.0.0.1:7412"), "{refused}");
        }
        _ = handover.wait_successor() => panic!("no successor reported that it serves"),
    }
}

#[tokio::test]
async fn proxies_of_this_and_the_previous_release_replace_each_other() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("proxy.sock");
    let ours = listeners(1).await;
    let handover = Handover::open((&path, &options()), Inherited::default(), &ours).unwrap();
    // A successor of the previous release gets the sockets at once.
    let previous = async {
        let mut channel = DescriptorChannel::new(UnixStream::connect(&path).await.unwrap());
        channel.send(HELLO_1, &[]).await.unwrap();
        let (message, sockets) = channel.receive().await.unwrap().unwrap();
        assert_eq!((&message[..], sockets.len()), (ALL, 2));
    };
    tokio::select! {
        () = previous => {}
        _ = handover.wait_successor() => panic!("no successor reported that it serves"),
    }
    drop(handover);

    // A predecessor of the previous release closes the connection after an unknown version.
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let previous = async {
        for known in [false, true] {
            let mut channel = DescriptorChannel::new(listener.accept().await.unwrap().0);
            let (hello, _) = channel.receive().await.unwrap().unwrap();
            assert_eq!(&hello[..] == HELLO_1, known);
            if known {
                channel.send(ALL, &[listener.as_fd(), ours[0].as_fd()]).await.unwrap();
            }
        }
    };
    let other = KeptOptions::new("proxy", [("--listen", "127.0.0.1:7412".to_owned())]);
    let (found, ()) = tokio::join!(Predecessor::find(&path, &other), previous);
    let (_, mut inherited) = found.unwrap().unwrap();
    assert!(inherited.take(ours[0].local_addr().unwrap()).is_some());
}
