//! Revoked identities with real processes.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_identity::{IdentityRequest, ProgramIdentity};
use fairmesh_model::RecordKey;
use fairmesh_rib::{Batch, Op};
use fairmesh_store::{RedbStore, Store as _};
use fairmesh_test_support::free_port;
use fairmesh_wire::transport::{EndpointAddress, ExpectedPeer, Stream, Transport};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::{
    calls::echo,
    identities::{agent, domain, has_certificate, over_tcp, request_certificate, runtime, start},
    support::{Mesh, Run, wait_until},
};

/// Time limit within which a revocation takes effect everywhere.
const LIMIT: Duration = Duration::from_secs(10);

/// A transport with a service's certificate, issued by the machine's agent.
pub(crate) async fn identity_of(agent: &str, service: &str) -> Transport {
    let request = IdentityRequest {
        agent: agent.parse().unwrap(),
        workload_api: None,
        control_planes: Vec::new(),
        token: None,
        path: Some(service.parse().unwrap()),
        software: "test".into(),
        patience: Duration::from_secs(5),
    };
    ProgramIdentity::of_caller(request).await.unwrap().transport()
}

async fn open(caller: &Transport, port: u16) -> Stream {
    let service = "shop/catalog".parse().unwrap();
    let address = ([127, 0, 0, 1], port).into();
    let endpoint = EndpointAddress {
        address,
        peer: Some(ExpectedPeer::Service(&service)),
        accepts_plaintext: false,
        from: None,
    };
    caller.connect_endpoint(endpoint).await.unwrap()
}

#[test]
fn revoked_identity_is_refused_everywhere_until_restored() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let (port, program) = (free_port(), format!("127.0.0.1:{}", echo()));
    let address = format!("127.0.0.1:{port}");
    let register = ["register", "shop/catalog", "--agent", &agent, "--address", &address];
    let _register = start(&[&register[..], &["--program", &program]].concat(), None);
    let call = |caller: &str| -> Run {
        mesh.run(&["call", "shop/catalog", "--agent", &agent, "--as", caller, "/items"])
    };
    wait_until("the service is called", || call("shop/web").code == Some(0));

    // A revoked caller: its open connection ends, while that of another caller stays.
    runtime().block_on(async {
        let (web, api) = (identity_of(&agent, "shop/web").await, identity_of(&agent, "shop/api").await);
        let (mut revoked, mut kept) = (open(&web, port).await, open(&api, port).await);
        mesh.run(&["identity", "revoke", "shop/web", "--message", "it was stolen"]).ok();
        let ended = timeout(LIMIT, revoked.read_u8()).await.expect("it is closed in time");
        ended.unwrap_err();
        assert!(timeout(Duration::from_millis(200), kept.read_u8()).await.is_err(), "another is closed");
    });
    let refused = request_certificate(&agent, "shop/web");
    assert!(refused.contains("shop/web is revoked") && refused.contains("identity restore"), "{refused}");
    call("shop/api").ok();
    let listed = mesh.run(&["identity", "list"]).ok();
    assert!(listed.contains("spiffe://prod/shop/web") && listed.contains("all certificates"), "{listed}");
    mesh.run(&["identity", "restore", "spiffe://prod/shop/web"]).ok();
    wait_until("the caller is accepted again", || call("shop/web").code == Some(0));

    // A revoked server.
    mesh.run(&["identity", "revoke", "shop/catalog"]).ok();
    wait_until("the server is no longer called", || call("shop/api").code != Some(0));
    let error = call("shop/api");
    assert!(error.err.contains("shop/catalog is revoked"), "{error:?}");
    is_shown_as_revoked(&mesh);
    mesh.run(&["identity", "restore", "shop/catalog"]).ok();
    wait_until("the server is called again", || call("shop/api").code == Some(0));
    let error = mesh.run(&["identity", "restore", "shop/catalog"]).fails(1);
    assert!(error.contains("is not revoked"), "{error}");

    // A revoked agent, which the control plane refuses.
    over_tcp(&tcp, &agent, &["identity", "show"]).ok();
    mesh.run(&["identity", "revoke", "fairmesh/agent/web-1", "--issued-before", "now"]).ok();
    let listed = mesh.run(&["identity", "list", "--json"]).json();
    assert_eq!(listed[0]["id"], json!("spiffe://prod/fairmesh/agent/web-1"), "{listed}");
    for time in ["issuedBefore", "revoked"] {
        let text = listed[0]["revocations"][0][time].as_str().unwrap_or_else(|| panic!("{time}: {listed}"));
        assert!(text.starts_with("20") && text.ends_with('Z'), "{time}: {listed}");
    }
    // The agent rejoins over the Unix socket of its control plane.
    wait_until("the agent has another certificate", || request_certificate(&agent, "shop/api").is_empty());
    for wrong in [&["--serial", "xyz"][..], &["--issued-before", "2999-01-01T00:00:00Z"]] {
        mesh.run(&[&["identity", "revoke", "shop/web"], wrong].concat()).fails(2);
    }
}

#[test]
fn control_plane_names_command_that_replaces_unreadable_revocations() {
    let (mut mesh, _) = domain();
    mesh.stop_control("TERM");
    runtime().block_on(async {
        let store = RedbStore::open(mesh.path("data/rib.redb")).unwrap();
        let ops = vec![Op::put(RecordKey::Revocations.to_string(), Bytes::from_static(&[0xff]))];
        store.write(Batch { ops }).await.unwrap();
        store.close().await;
    });
    mesh.start_control();
    let command = "`fairmesh identity revoke ID --replace-unreadable --control unix:DIR/control.sock`";
    wait_until("the log names the command", || mesh.control_log().contains(command));
    assert_ne!(mesh.run(&["identity", "revoke", "shop/web"]).code, Some(0), "it is replaced only on request");
    mesh.run(&["identity", "revoke", "shop/web", "--replace-unreadable"]).ok();
    let listed = mesh.run(&["identity", "list"]).ok();
    assert!(listed.contains("spiffe://prod/shop/web"), "{listed}");
}

/// Asserts that commands show the catalog's identity as revoked, and that the log of writes has the reason.
fn is_shown_as_revoked(mesh: &Mesh) {
    let note = mesh.run(&["get", "endpoints", "shop/catalog"]).err;
    assert!(note.contains("the identity of shop/catalog is revoked"), "{note}");
    let listed = mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    let instance = format!("shop/catalog/{}", listed[0]["instance"].as_str().unwrap());
    let described = mesh.run(&["describe", "endpoint", &instance, "--json"]).json();
    assert_eq!(described["revoked"], "all certificates", "{described}");
    let explain = ["explain", "shop/catalog", "--region", "eu"];
    let explained = mesh.run(&explain);
    assert!(
        explained.code == Some(1) && explained.out.contains("revoked  all certificates"),
        "{explained:?}"
    );
    mesh.run(&["identity", "revoke", "shop/api", "--serial", "0a0b"]).ok();
    let explained = mesh.run(&[&explain[..], &["--as", "shop/api", "--json"]].concat());
    let explained: Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!(explained["goesTo"]["revoked"], "all certificates", "{explained}");
    assert_eq!(explained["authorization"]["revoked"], "the certificate 0a0b", "{explained}");
    mesh.run(&["identity", "restore", "shop/api"]).ok();

    let logged = mesh.run(&["audit", "--key", "/identity/revocations", "--json"]).json();
    assert_eq!(logged[0]["message"], "it was stolen", "{logged}");
    assert_eq!(logged[0]["after"]["revocations"][0]["id"], "shop/web", "{logged}");
    let text = mesh.run(&["audit", "--key", "/identity/"]).ok();
    assert!(text.contains("it was stolen") && !text.contains("Revocation {"), "{text}");
}
