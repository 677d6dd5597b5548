use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use fairmesh_test_support::free_port;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{PATIENCE, World};

/// A registered server whose connections the test handles byte by byte.
pub(crate) struct RawServer {
    listener: TcpListener,
    _server: MeshServer,
}

impl RawServer {
    pub(crate) async fn start(world: &World, service: &str, instance: &str) -> Self {
        Self::speaking(world, service, instance, Protocol::Http1).await
    }

    /// Registers a server declared with this protocol.
    pub(crate) async fn speaking(world: &World, service: &str, instance: &str, protocol: Protocol) -> Self {
        // A port that stays reserved after the listener is closed.
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

    /// The next connection, without waiting for data.
    pub(crate) async fn accept_tunnel(&self) -> TcpStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("no client connects").unwrap().0
    }

    /// The next connection with data. A connection that ends before may belong to an earlier server that had this port.
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

    /// The listener, and the value that keeps the server registered.
    pub(crate) fn into_parts(self) -> (TcpListener, MeshServer) {
        (self.listener, self._server)
    }

    /// Closes the listener; the server stays registered.
    pub(crate) fn close(self) -> MeshServer {
        self._server
    }
}

/// Opens a connection and sends these bytes.
pub(crate) async fn say(to: &str, words: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(words.as_ref()).await.unwrap();
    stream
}

/// Reads the head of a message and nothing beyond it; returns it in lower case.
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

/// Reads until the end of the connection, orderly or not.
pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    assert!(ended.is_ok(), "it goes on after {:?}", String::from_utf8_lossy(&all));
    all
}
