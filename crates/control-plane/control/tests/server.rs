//! Tests of start, health pages, metrics, and stop.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, net::SocketAddr};

use fairmesh_control::{Control, ControlConfig, ControlError};
use fairmesh_model::Protocol;
use fairmesh_wire::{transport::Address, v1};
use support::{TestControl, at_revision, config, put, service, service_key};

async fn refusal(config: ControlConfig) -> String {
    match Control::start(config).await {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn address_in_use_is_named_in_error() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().join("one"))).await;

    let mut taken = config(folder.path().join("two"));
    taken.grpc = vec![control.grpc[0].clone()];
    let text = refusal(taken).await;
    assert!(text.contains("gRPC") && text.contains(&control.grpc[0].to_string()), "{text}");
    assert!(text.contains("choose another address"), "{text}");

    let mut taken = config(folder.path().join("three"));
    taken.http = Some(control.http);
    let text = refusal(taken).await;
    assert!(text.contains("admin pages") && text.contains(&control.http.to_string()), "{text}");
    assert!(text.contains("choose another address"), "{text}");

    let mut foreign = config(folder.path().join("four"));
    foreign.http = Some(SocketAddr::from(([192, 0, 2, 1], 80)));
    assert!(refusal(foreign).await.contains("192.0.2.1:80"));

    let none = ControlConfig { grpc: Vec::new(), ..config(folder.path().join("five")) };
    assert!(matches!(Control::start(none).await, Err(ControlError::NoAddress)));
    control.stop().await;
}

#[tokio::test]
async fn store_in_use_or_damaged_is_named_with_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let text = refusal(config(folder.path().into())).await;
    assert!(text.contains("another process has it open") && text.contains("rib.redb"), "{text}");
    control.stop().await;

    let store = folder.path().join("rib.redb");
    fs::write(&store, "").unwrap();
    let text = refusal(config(folder.path().into())).await;
    assert!(text.contains(store.to_str().unwrap()) && text.contains("restore it from a copy"), "{text}");
    assert_eq!(fs::read(&store).unwrap(), b"", "the file is unchanged");
}

#[tokio::test]
async fn control_plane_health_pages_and_metrics_reflect_writes() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(control.http("GET", path, "").await.0, "HTTP/1.1 200 OK");
    }
    let (status, error) = control.http("GET", "/nowhere", "").await;
    assert!(status == "HTTP/1.1 404 Not Found" && error.contains("\"hint\":\"see docs/http.md"), "{error}");
    let connection = control.connect().await;
    let mut rib = connection.rib();
    let mut write = async |op| rib.write(v1::WriteRequest { ops: vec![op] }).await;
    let put = || put(service_key("shop/cart"), service(Protocol::Grpc));
    write(put()).await.unwrap();
    write(at_revision(put(), 9)).await.unwrap_err();

    let (status, text) = control.http("GET", "/metrics", "").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "fairmesh_control_revision 1",
        "fairmesh_control_writes_total{outcome=\"written\"} 1",
        "fairmesh_control_writes_total{outcome=\"conflict\"} 1",
        "fairmesh_control_write_conflicts_total 1",
        "fairmesh_control_watchers 0",
        "fairmesh_control_leases 0",
        "fairmesh_control_endpoints{state=\"serving\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("fairmesh_build_info{process=\"control\",version="), "{text}");
    assert!(!text.contains("fairmesh_control_store_bytes 0\n"), "{text}");
    control.stop().await;
}

#[tokio::test]
async fn controllers_are_listed_and_their_rounds_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect_at(0).await;
    let listed = async || {
        let request = v1::ListControllersRequest {};
        connection.admin().list_controllers(request).await.unwrap().into_inner().controllers
    };
    let first_rounds = async {
        while listed().await.iter().any(|status| status.last.is_none()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(support::BOUND, first_rounds).await.unwrap();
    let names: Vec<_> = listed().await.into_iter().map(|status| status.name).collect();
    assert_eq!(
        names,
        [
            "distance-targets",
            "drains",
            "federated-bundles",
            "placement",
            "planner",
            "quotas",
            "token-issuers",
            "verdicts"
        ],
        "a mesh without a trust domain"
    );
    let text = control.http("GET", "/metrics", "").await.1;
    for name in names {
        for line in [
            format!("fairmesh_control_controller_rounds_total{{controller=\"{name}\",outcome=\"failed\"}} 0"),
            format!("fairmesh_control_controller_consecutive_failures{{controller=\"{name}\"}} 0"),
            format!("fairmesh_control_controller_shadow{{controller=\"{name}\"}} 0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
    assert!(
        text.contains("fairmesh_control_controller_last_round_seconds{controller=\"verdicts\"}"),
        "{text}"
    );
    control.stop().await;
}

const CART: &str = r#"{"service": "shop/cart", "endpoints": [{"instance": "cart-0", "address": "127.0.0.1:9000", "region": "eu"}]}"#;

#[tokio::test]
async fn registry_is_served_as_json_and_grpc_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    connection
        .rib()
        .write(v1::WriteRequest { ops: vec![put(service_key("shop/cart"), service(Protocol::Grpc))] })
        .await
        .unwrap();
    let (status, body) = control.http("POST", "/v1/register", CART).await;
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    let who = v1::InstanceRef { service: "shop/cart".into(), instance: "cart-0".into(), incarnation: 0 };
    let serving = control.http("GET", "/metrics", "").await.1;
    assert!(serving.contains("fairmesh_control_endpoints{state=\"serving\"} 1\n"), "{serving}");

    let state = v1::endpoint::State::Draining.into();
    let reports = vec![v1::StateReport { instance: Some(who), state }];
    let report = v1::ReportRequest { reports, by_operator: false };
    connection.registry().report(report).await.unwrap();
    let draining = control.http("GET", "/metrics", "").await.1;
    assert!(draining.contains("fairmesh_control_endpoints{state=\"serving\"} 0\n"), "{draining}");
    assert!(draining.contains("fairmesh_control_endpoints{state=\"draining\"} 1\n"), "{draining}");
    control.stop().await;
}

#[tokio::test]
async fn endpoints_of_file_are_registered_and_invalid_file_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    let good = "kind: Endpoints\nservice: shop/cart\nendpoints:\n- {instance: cart-0, address: 127.0.0.1:9000, region: eu}\n";
    fs::write(files.join("good.yaml"), good).unwrap();
    fs::write(files.join("wrong.yaml"), "kind: Endpoints\nservice: [\n").unwrap();
    let mut config = config(folder.path().join("data"));
    config.sources = vec![files];
    let control = TestControl::start(config).await;
    let connection = control.connect().await;
    let service = put(service_key("shop/cart"), service(Protocol::Grpc));
    connection.rib().write(v1::WriteRequest { ops: vec![service] }).await.unwrap();
    let both = async {
        loop {
            let text = control.http("GET", "/metrics", "").await.1;
            if text.contains("{state=\"serving\"} 1\n")
                && text.contains("fairmesh_control_invalid_source_files 1\n")
            {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(support::BOUND, both).await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn unix_socket_serves_beside_tcp_and_is_removed_at_stop() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run/control.sock");
    let mut config = config(folder.path().join("data"));
    config.grpc.push(Address::Unix(socket.clone()));
    let control = TestControl::start(config).await;
    assert_eq!(control.connect_at(0).await.hello, control.connect_at(1).await.hello);
    control.stop().await;
    assert!(!socket.exists());
}
