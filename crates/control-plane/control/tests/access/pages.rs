//! Tests of the pages of a control plane, as a browser reads them.

use fairmesh_model::{Record, RecordKey, access::AccessRole};
use fairmesh_wire::record_encoding;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    members::{own, start_strict},
    roles::{apply, bind, binding},
    support::{BOUND, TestControl, delete, put},
};

/// Sends a request for a page, and returns the connection.
async fn get(control: &TestControl, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(control.http).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, part: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(part) {
        let count = timeout(BOUND, stream.read_buf(&mut read)).await.expect(part).unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&read));
    }
}

#[tokio::test]
async fn page_stream_ends_when_its_reader_loses_the_role() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    bind(&control, "all", binding(AccessRole::Viewer, &[], &[], "anonymous")).await;
    bind(&control, "shop", binding(AccessRole::Viewer, &["shop"], &[], "anonymous")).await;
    let host = "host: 127.0.0.1\r\n";
    let mut mesh = get(&control, "/ui/api/live", host).await;
    let mut tenant = get(&control, "/ui/api/live?tenant=shop", host).await;
    read_until(&mut mesh, "event: calls").await;
    let key = RecordKey::RoleBinding("all".parse().unwrap()).to_string();
    apply(&own(&control).await, vec![delete(key)]).await.unwrap();
    let mut rest = Vec::new();
    timeout(BOUND, mesh.read_to_end(&mut rest)).await.expect("the stream ends").unwrap();
    // The other binding remains, and with it the other stream.
    read_until(&mut tenant, "event: calls").await;
    let changed = binding(AccessRole::Viewer, &["shop"], &[], "anonymous");
    let key = RecordKey::RoleBinding("shop".parse().unwrap()).to_string();
    let value = record_encoding::encode(&Record::RoleBinding(changed)).to_vec();
    apply(&own(&control).await, vec![put(key, value)]).await.unwrap();
    read_until(&mut tenant, "\n: \n").await;
    control.stop().await;
}

#[tokio::test]
async fn metrics_refuse_browsers_that_address_another_host() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    for (headers, expected) in [
        ("host: rebound.example\r\naccept-language: en\r\n", "421"),
        ("host: rebound.example\r\nuser-agent: Mozilla/5.0\r\n", "421"),
        ("host: rebound.example\r\nreferer: http://rebound.example/\r\n", "421"),
        ("host: 127.0.0.1\r\naccept-language: en\r\n", "200"),
        ("host: localhost:7401\r\naccept-language: en\r\n", "200"),
        ("host: control.monitoring.svc\r\nuser-agent: Prometheus/3.0\r\n", "200"),
    ] {
        for (page, expected) in [("/metrics", expected), ("/healthz", "200")] {
            let mut stream = get(&control, page, headers).await;
            let mut response = String::new();
            timeout(BOUND, stream.read_to_string(&mut response)).await.unwrap().unwrap();
            assert_eq!(response.split(' ').nth(1), Some(expected), "{page} {headers}");
        }
    }
    control.stop().await;
}
