//! TLS bytes sent by programs in the cgroup.

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, call, run_in},
};
use crate::harness::{Authority, World, beside_others, free_port, skipped, tool};

/// A TLS echo server.
const SERVER: &str = r#"
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("", int(sys.argv[3])))

def serve(connection):
    try:
        connection = context.wrap_socket(connection, server_side=True)
        while piece := connection.recv(65536):
            connection.sendall(piece)
    except OSError:
        pass

while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Sends messages of many lengths over TLS to a virtual address; the kernel would send plaintext HTTP/1.1 to that
/// address.
const CLIENT: &str = r#"
import random, socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
dice = random.Random(7)
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context.minimum_version = context.maximum_version = version
    plain = socket.create_connection(("127.96.0.1", int(sys.argv[2])), 20)
    secured = context.wrap_socket(plain, server_hostname="one.shop")
    for size in (1, 200, 2000, 16384, 60000, 300000):
        for sent in (b"GET / HTTP/1.1\r\nhost: raw.shop\r\n\r\n", dice.randbytes(size)):
            secured.sendall(sent)
            came = b""
            while len(came) < len(sent):
                piece = secured.recv(65536)
                assert piece, "it ended"
                came += piece
            assert came == sent, "other bytes came back"
    secured.close()
    print(version.name)
"#;

/// Sends the start of a TLS handshake on a connection whose requests the kernel sends.
const HELLO: &str = r#"
for at in range(5):
    ask(b"plain-5")
connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 505)
print(file.readline().split()[1].decode())
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_leaves_tls_bytes_of_captured_connections_unchanged() {
    let _machine = beside_others().await;
    if tool("python3").is_none() || tool("openssl").is_none() {
        return skipped("a Python program speaks TLS", "python3 or openssl is missing");
    }
    let Some(attached) = Attached::new("tls").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("server", "ec");
    let port = free_port();
    let program = ["python3", "-c", SERVER, &authority.path("server.pem"), &authority.path("server.key")];
    let program =
        [&program[..], &[&port.to_string()]].concat().iter().map(|&part| part.to_owned()).collect::<Vec<_>>();
    let _secured = run_in(&server.cgroup, &program, port).await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    let ports = format!("80,{port}");
    attached.attach_with(&["--servers", &server.cgroup, "--port", &ports]).await;

    let client = ["python3", "-c", CLIENT, &authority.path("ca.pem"), &port.to_string()];
    assert_eq!(attached.run(&client).await.ok(), "TLSv1_2\nTLSv1_3\n");
    proxy.reaches("captured_connections_passthrough_total", 2.0).await;
    assert_eq!(attached.counter("redirected").await, 2);
    assert!(attached.counter("not-plain").await >= 2 * 12, "each message is left to the proxy");
    assert_eq!(attached.counter("sent-by-kernel").await, 0);

    assert_eq!(call(&attached, HELLO).await, "400\n");
    assert!(attached.counter("sent-by-kernel").await >= 1);
    let status = attached.status().await;
    assert_eq!(status["inFlight"], 0, "{status}");
}
