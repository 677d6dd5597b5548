//! `fairmesh trace` with spans that a proxy exports to the control plane.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use fairmesh_otlp::v1::{
    AnyValue, ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Resource, ResourceSpans,
    ScopeSpans, Span, any_value::Value,
};
use fairmesh_test_support::free_port;
use fairmesh_wire::transport::Transport;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    calls::echo,
    identities::{agent, has_certificate, runtime, start},
    revocations::identity_of,
    support::{Mesh, wait_until},
};

/// Status of a request for a host over a new connection.
pub(super) fn status(address: &str, host: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET /items HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    Some(response.split(' ').nth(1)?.to_owned())
}

#[test]
fn trace_command_shows_slow_and_failed_requests_with_attempts() {
    let mut mesh = Mesh::empty();
    let [spans, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    mesh.arguments.extend(["--traces".to_owned(), spans.clone()]);
    mesh.start_control();
    mesh.apply("kind: Service\nname: shop/catalog\n---\nkind: Service\nname: shop/gone\n").ok();
    mesh.register("shop/catalog", "catalog-0", "eu", echo());
    let (agent, to) = (mesh.agent("eu"), format!("http://{spans}"));
    let proxy = ["proxy", "--agent", &agent.address(), "--admin", "none", "--listen", &listen];
    let traced = ["--trace-to", &to, "--trace-one-in", "1"];
    let _proxy = start(&[&proxy[..], &traced].concat(), None);
    wait_until("the proxy serves", || status(&listen, "catalog.shop").as_deref() == Some("200"));
    let list = |args: &[&str]| mesh.run(&[&["trace", "--json"], args].concat()).json();
    wait_until("its spans have arrived", || list(&["shop/catalog"])[0]["spanCount"] == 2);
    let listed = list(&["shop/catalog"])[0].clone();
    let id = listed["id"].as_str().unwrap();
    let shown = list(&[id]);
    let (request, attempt) = (&shown["spans"][0], &shown["spans"][1]);
    assert_eq!((&request["depth"], &request["service"]), (&0.into(), &"shop/catalog".into()), "{shown}");
    assert_eq!((&attempt["depth"], &attempt["parent"]), (&1.into(), &request["id"]), "{shown}");
    assert_eq!((&attempt["instance"], &attempt["region"]), (&"catalog-0".into(), &"eu".into()), "{shown}");
    assert!(attempt["revision"].as_u64().is_some_and(|revision| revision > 0), "{shown}");
    let waterfall = mesh.run(&["trace", id]).ok();
    assert!(waterfall.contains("→ GET shop/catalog") && waterfall.contains("█"), "{waterfall}");
    assert_eq!(list(&["shop/gone"]), serde_json::json!([]));
    assert!(mesh.run(&["trace", &"0".repeat(31), "--json"]).fails(2).contains("32 hexadecimal digits"));
    assert!(mesh.run(&["trace", &"a".repeat(32)]).fails(1).contains("there is no trace"));
}

#[test]
fn control_plane_without_traces_says_how_to_enable_them() {
    let mesh = Mesh::start();
    assert!(mesh.run(&["trace"]).fails(1).contains("--traces ADDRESS"));
}

/// A request with a span of each service, in a trace of its own.
fn export_of(services: &[&str]) -> Vec<u8> {
    let spans = services.iter().zip(1..).map(|(service, trace)| {
        let name = AnyValue { value: Some(Value::StringValue((*service).to_owned())) };
        let attributes = vec![KeyValue { key: "service.name".into(), value: Some(name) }];
        let span = Span { trace_id: vec![trace; 16], span_id: vec![1; 8], ..Span::default() };
        let scope_spans = vec![ScopeSpans { scope: None, spans: vec![span] }];
        ResourceSpans { resource: Some(Resource { attributes }), scope_spans }
    });
    let body = ExportTraceServiceRequest { resource_spans: spans.collect() }.encode_to_vec();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: control\r\ncontent-type: application/x-protobuf\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Number of spans that a control plane rejects of a sender with this identity.
async fn rejected(transport: &Transport, port: u16, services: &[&str]) -> i64 {
    let mut stream = transport.connect_host("127.0.0.1", port).await.unwrap();
    stream.write_all(&export_of(services)).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let at = response.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&response[..at]);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let response = ExportTraceServiceResponse::decode(&response[at..]).unwrap();
    response.partial_success.map_or(0, |partial| partial.rejected_spans)
}

#[test]
fn strict_control_plane_takes_spans_only_of_services_that_sender_is() {
    let mut mesh = Mesh::empty();
    let (port, listen) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let spans = format!("127.0.0.1:{port}");
    mesh.arguments = ["--trust-domain", "prod", "--traces", &spans].map(str::to_owned).to_vec();
    mesh.start_control();
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (program, behind) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", echo()));
    let registering = ["register", "shop/catalog", "--agent", &address, "--address", &program];
    let _server = start(&[&registering[..], &["--program", &behind]].concat(), None);
    let list = |service: &str| mesh.run(&["trace", service, "--json"]).json();

    // A local user without a certificate.
    let mut stream = TcpStream::connect(&spans).unwrap();
    stream.write_all(&export_of(&["shop/catalog"])).unwrap();
    let mut refused = String::new();
    stream.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("over https"), "{refused}");

    // Another service of the mesh.
    let services = ["shop/web", "shop/catalog", "bank/vault", "web"];
    let rejected = runtime()
        .block_on(async { rejected(&identity_of(&address, "shop/web").await, port, &services).await });
    assert_eq!((rejected, list("shop/catalog").as_array().unwrap().len()), (3, 0));
    assert_eq!(list("shop/web").as_array().unwrap().len(), 1, "a service states its own spans");

    // Honest work goes on: a proxy with its certificate.
    let (proxy, to) = (["proxy", "--agent", &address, "--admin", "none"], format!("https://{spans}"));
    let traced = ["--listen", &listen, "--trace-to", &to, "--trace-one-in", "1"];
    let _proxy = start(&[&proxy[..], &traced].concat(), None);
    wait_until("the proxy serves", || status(&listen, "catalog.shop").as_deref() == Some("200"));
    wait_until("its spans have arrived", || list("shop/catalog")[0]["spanCount"] == 2);
}
