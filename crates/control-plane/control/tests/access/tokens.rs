//! Tests of user tokens on the kinds of connections.

use std::{path::Path, time::Duration};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use fairmesh_control::{ControlConfig, JwksLocation, OidcConfig, TrustDomainChoice};
use fairmesh_identity::{Clock as _, SystemClock};
use fairmesh_model::{Protocol, TrustDomain, access::AccessRole};
use fairmesh_wire::{
    handshake,
    transport::{BearerToken, Transport},
    v1::{self, DescribeCallerRequest, watch_request, watch_response},
    watch::Watch,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;

use super::{
    members::{join, own},
    roles::{apply, bind, binding},
    support::{BOUND, TestControl, config, put, service, service_key},
};

/// An identity provider with one key.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    /// A control plane that accepts the issuer's tokens.
    async fn start(folder: &Path) -> (Self, TestControl) {
        let key = Ed25519KeyPair::generate().unwrap();
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "one", "x": BASE64.encode(key.public_key().as_ref()) });
        let jwks = folder.join("jwks.json");
        std::fs::write(&jwks, json!({ "keys": [jwk] }).to_string()).unwrap();
        let oidc = OidcConfig {
            issuer: "https://idp.example".into(),
            client_id: "fairmesh".into(),
            jwks: JwksLocation::File(jwks),
            ca_file: None,
            username_claim: "sub".into(),
            groups_claim: "groups".into(),
        };
        let trust_domain = TrustDomainChoice::Given(TrustDomain::new("prod").unwrap());
        let data = folder.join("data");
        let control = ControlConfig { trust_domain, oidc: Some(oidc), ..config(data) };
        (Self(key), TestControl::start(control).await)
    }

    /// A token of user alice in group `sre` that the verifier accepts for this long from now.
    fn token(&self, accepted_for: Duration) -> BearerToken {
        // The verifier tolerates clocks that differ by a minute.
        let expires = (SystemClock.now() + accepted_for).as_secs_f64() - 60.0;
        let claims = json!({
            "iss": "https://idp.example", "aud": "fairmesh", "sub": "alice", "groups": ["sre"], "exp": expires,
        });
        let part = |part: &Value| BASE64.encode(part.to_string());
        let message = format!("{}.{}", part(&json!({ "alg": "EdDSA", "kid": "one" })), part(&claims));
        let signature = BASE64.encode(self.0.sign(message.as_bytes()).as_ref());
        BearerToken::new(&format!("{message}.{signature}")).unwrap()
    }
}

const LONG: Duration = Duration::from_secs(300);

#[tokio::test]
async fn user_token_adds_roles_of_its_groups_to_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, control) = Issuer::start(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let machine = agent.issue(&control, "fairmesh/operator/web-1.uid-7").await.unwrap().transport();
    let connect =
        async |transport: Transport| handshake::connect(&transport, &control.grpc[0], "test").await.unwrap();
    let alice = connect(machine.clone().with_token(issuer.token(LONG))).await;
    let declare = |name: &str| vec![put(service_key(name), service(Protocol::Http1))];
    let refused = apply(&alice, declare("shop/cart")).await.unwrap_err();
    assert!(refused.message().contains("https://idp.example#alice (spiffe://prod/"), "{refused}");

    bind(&control, "sre", binding(AccessRole::Operator, &["shop"], &[], "group:sre")).await;
    apply(&alice, declare("shop/cart")).await.unwrap();
    alice.rib().write(v1::WriteRequest { ops: declare("shop/web") }).await.unwrap();
    assert_eq!(apply(&alice, declare("bank/vault")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(
        apply(&connect(machine.clone()).await, declare("shop/a")).await.unwrap_err().code(),
        Code::NotFound
    );

    let described = alice.admin().describe_caller(DescribeCallerRequest {}).await.unwrap().into_inner();
    let (user, role) = (described.user.unwrap(), &described.roles[0]);
    assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("alice", "sre"));
    assert_eq!((role.binding.as_str(), role.subject.as_str(), described.admin), ("sre", "group:sre", false));
    let described =
        own(&control).await.admin().describe_caller(DescribeCallerRequest {}).await.unwrap().into_inner();
    assert!(described.admin && described.user.is_none() && described.roles.is_empty(), "{described:?}");

    // An invalid token is an error, even if the connection alone would permit the call.
    let late = connect(machine.with_token(issuer.token(Duration::ZERO))).await;
    let refused = late.admin().describe_caller(DescribeCallerRequest {}).await.unwrap_err();
    assert!(refused.code() == Code::Unauthenticated && refused.message().contains("'exp'"), "{refused}");
    control.stop().await;
}

async fn first_response(watch: &mut Watch, prefix: &str) -> Option<watch_response::Kind> {
    let subscribe = v1::Subscribe { prefix: prefix.into(), ..v1::Subscribe::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    watch.next().await.unwrap().kind
}

#[tokio::test]
async fn watch_ends_when_user_token_expires() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, control) = Issuer::start(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let machine = agent.issue(&control, "fairmesh/operator/web-1.uid-7").await.unwrap().transport();
    bind(&control, "sre", binding(AccessRole::Viewer, &["shop"], &[], "group:sre")).await;
    let open = async |token: Option<BearerToken>| {
        let transport = machine.clone();
        let transport = match token {
            Some(token) => transport.with_token(token),
            None => transport,
        };
        Watch::open(&transport, &control.grpc[0], "test").await
    };
    let prefix = "/t/shop/services/";
    let mut stranger = open(None).await.unwrap();
    assert!(matches!(first_response(&mut stranger, prefix).await, Some(watch_response::Kind::Refused(_))));
    let refused = open(Some(issuer.token(Duration::ZERO))).await.unwrap_err().to_string();
    assert!(refused.contains("the token is refused: its claim 'exp'"), "{refused}");
    let mut watch = open(Some(issuer.token(Duration::from_secs(2)))).await.unwrap();
    assert!(matches!(first_response(&mut watch, prefix).await, Some(watch_response::Kind::Snapshot(_))));
    let ended = timeout(BOUND, async {
        loop {
            if let Err(status) = watch.next().await {
                return status;
            }
        }
    });
    let ended = ended.await.unwrap();
    assert!(ended.code() == Code::Unauthenticated && ended.message().contains("has expired"), "{ended}");
    control.stop().await;
}

#[tokio::test]
async fn user_token_is_refused_and_not_sent_over_plaintext() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, control) = Issuer::start(folder.path()).await;
    let token = issuer.token(LONG);
    let mut responses = Vec::new();
    for path in ["/v1/shards/shop/cart", "/metrics"] {
        let mut stream = TcpStream::connect(control.http).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: control\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
            token.secret()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        timeout(BOUND, stream.read_to_string(&mut response)).await.unwrap().unwrap();
        responses.push(response);
    }
    assert!(
        responses[0].starts_with("HTTP/1.1 401") && responses[0].contains("plaintext"),
        "{}",
        responses[0]
    );
    assert!(responses[1].starts_with("HTTP/1.1 200"), "monitoring may send what it likes");
    control.stop().await;

    // A control plane without a trust domain accepts plaintext.
    let open = TestControl::start(config(folder.path().join("open"))).await;
    let connection =
        handshake::connect(&Transport::default().with_token(token), &open.grpc[0], "test").await.unwrap();
    let refused = connection.admin().describe_caller(DescribeCallerRequest {}).await.unwrap_err();
    assert!(refused.message().contains("the token is not sent"), "{refused}");
    let refused = connection.watch().await.unwrap_err().to_string();
    assert!(refused.contains("the token is not sent"), "{refused}");
    open.stop().await;
}
