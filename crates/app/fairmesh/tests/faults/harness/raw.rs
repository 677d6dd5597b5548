use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use fairmesh_test_support::free_port;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{PATIENCE, World};

/// A registered server whose connections the test itself takes, byte by byte.
pub(crate) struct RawServer {
    listener: TcpListener,
    _server: MeshServer,
}

impl RawServer {
    pub(crate) async fn start(world: &World, service: &str, instance: &str) -> Self {
        Self::speaking(world, service, instance, Protocol::Http1).await
    }

    /// Declared to speak this.
    pub(crate) async fn speaking(world: &World, service: &str, instance: &str, protocol: Protocol) -> Self {
        // Of its own after it is closed too.
        let listener = TcpListener::bind(("127.0.0.1", free_port())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = MeshServer::builder(service)
            .instance(instance)
            .address(address)
            .protocol(protocol)
            .agent(world.agent_address());
        let _server = server.start().await.unwrap();
        world.serves(service, instance).await;
        Self { listener, _server }
    }

    /// The next connection, on which both sides may wait for the other to begin.
    pub(crate) async fn accept_tunnel(&self) -> TcpStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("no client connects").unwrap().0
    }

    /// The next connection on which something is said. One that ends before may be of another test, whose server had this port.
    pub(crate) async fn accept(&self) -> TcpStream {
        let spoken = async {
            loop {
                let (stream, _) = self.listener.accept().await.unwrap();
                if stream.peek(&mut [0]).await.is_ok_and(|said| said > 0) {
                    return stream;
                }
            }
        };
        timeout(PATIENCE, spoken).await.expect("no client says anything")
    }

    /// Its listener, and what keeps it registered.
    pub(crate) fn into_parts(self) -> (TcpListener, MeshServer) {
        (self.listener, self._server)
    }

    /// Stays registered, and takes no connections any more.
    pub(crate) fn close(self) -> MeshServer {
        self._server
    }
}

/// A connection on which this was said.
pub(crate) async fn say(to: &str, words: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(words.as_ref()).await.unwrap();
    stream
}

/// Reads headers and nothing beyond them; returns them in lower case.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    let whole = timeout(PATIENCE, read).await.is_ok();
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(whole, "only {head:?} came");
    head
}

/// Reads to the end, whether that is in good order or not.
pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    assert!(ended.is_ok(), "it goes on after {:?}", String::from_utf8_lossy(&all));
    all
}
