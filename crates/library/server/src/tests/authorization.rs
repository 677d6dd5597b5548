//! Authorization of callers by a server of the library, compared with `vectors/`.

use std::{
    convert::Infallible,
    path::Path,
    pin::pin,
    slice::from_ref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use fairmesh_identity::Workload;
use fairmesh_model::{
    Identity, ServiceName, SpiffeId, TokenIssuer, TokenIssuers,
    spec::{DefaultAuthorizationSpec, PolicySpec},
};
use fairmesh_router::AuthorizationTable;
use fairmesh_tokens::Issuers;
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, Handshake, TlsIdentity, Transport};
use futures_util::FutureExt as _;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, UPGRADE},
};
use serde_json::Value;
use tokio::{net::TcpStream, sync::watch};
use tonic::transport::server::TcpConnectInfo;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{
    Caller, ConnectInfo, ServerLayer,
    authorization::{AcceptedCall, Authorizer, NotAccepted, system_time},
    layer::LayerState,
};
use fairmesh_headers::{CALLER, FAULT, GRPC_STATUS, UNAUTHORIZED};

const WEB: &str = "spiffe://prod/shop/web";

fn table(policy: &Value, default: &Value) -> AuthorizationTable {
    let spec: PolicySpec = serde_json::from_value(policy.clone()).unwrap();
    let default = DefaultAuthorizationSpec { default: default.as_str().unwrap().into() };
    let checkers = ["web-1".parse().unwrap()].into();
    AuthorizationTable::compile(&spec.validate().unwrap().1, default.validate().unwrap(), Some(checkers))
}

/// Returns the layer of a server whose callers prove identities. `table` is `None` before its policy is known.
fn layer(table: Option<AuthorizationTable>) -> ServerLayer {
    let transport = Transport::tls(Arc::<Workload>::default());
    let authorizer = Authorizer::of_server(ServiceName::new("shop/cart").unwrap(), &transport);
    table.into_iter().for_each(|table| authorizer.set(table));
    ServerLayer { shared: Arc::new(LayerState { authorizer: Arc::new(authorizer), ..LayerState::default() }) }
}

fn caller(id: &str) -> Caller {
    Caller::of(&Identity::Spiffe(id.parse().unwrap())).unwrap()
}

/// Sends a request to a handler that reports the caller.
async fn send(layer: &ServerLayer, request: Request<String>) -> Response<()> {
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let caller = request.extensions().get::<Caller>();
        let mut response = Response::new(String::new());
        let words =
            caller.map(|caller| format!("{} via {:?}", caller.id(), caller.via().map(ToString::to_string)));
        response.headers_mut().insert("x-seen", words.unwrap_or_default().parse().unwrap());
        let stated = request.headers().get(CALLER).cloned();
        stated.map(|stated| response.headers_mut().insert("x-stated", stated));
        let address = request.extensions().get::<TcpConnectInfo>().is_some();
        response
            .headers_mut()
            .insert("x-address", HeaderValue::from_static(if address { "yes" } else { "no" }));
        Ok::<_, Infallible>(response)
    }));
    service.oneshot(request).await.unwrap().map(drop)
}

fn request(by: Option<&str>, method: &str, path: &str) -> Request<String> {
    let mut request = Request::new(String::new());
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = path.parse().unwrap();
    by.map(|by| request.extensions_mut().insert(caller(by)));
    request
}

/// Adds to a request what conditions compare: headers, a token with these claims, and an address.
fn brought(mut request: Request<String>, more: &Value, issuer: &Issuer) -> Request<String> {
    for pair in more["headers"].as_array().into_iter().flatten() {
        let name: http::HeaderName = pair[0].as_str().unwrap().parse().unwrap();
        request.headers_mut().append(name, pair[1].as_str().unwrap().parse().unwrap());
    }
    if more["claims"].is_object() {
        let mut claims = more["claims"].clone();
        (claims["iss"], claims["aud"]) = (ISSUER.into(), "cart".into());
        request.headers_mut().insert(AUTHORIZATION, issuer.bearer(claims));
    }
    if let Some(source) = more["source"].as_str() {
        let remote_addr = Some((source.parse::<std::net::IpAddr>().unwrap(), 1).into());
        let tcp = TcpConnectInfo { local_addr: None, remote_addr };
        let caller = request.extensions_mut().remove();
        request.extensions_mut().insert(ConnectInfo { tcp, caller });
    }
    request
}

const ISSUER: &str = "https://idp.example";

/// An issuer of test tokens.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(Ed25519KeyPair::generate().unwrap())
    }

    /// Returns the issuers that a server knows: only this one.
    fn known(&self) -> Issuers {
        let public = BASE64.encode(self.0.public_key());
        let key = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": public});
        let keys = serde_json::json!({"keys": [key]}).to_string().into_bytes();
        let record = TokenIssuers { issuers: vec![TokenIssuer { issuer: ISSUER.into(), url: None, keys }] };
        Issuers::of(&record, system_time).0
    }

    /// Returns a token with these claims, which expires in five minutes unless the claims say otherwise.
    fn bearer(&self, mut claims: Value) -> HeaderValue {
        if claims["exp"].is_null() {
            claims["exp"] = (system_time().as_secs() + 300).into();
        }
        let header = serde_json::json!({"alg": "EdDSA", "kid": "one"});
        let signed = [header, claims].map(|part| BASE64.encode(part.to_string())).join(".");
        let signature = BASE64.encode(self.0.sign(signed.as_bytes()));
        format!("Bearer {signed}.{signature}").parse().unwrap()
    }
}

/// Returns a policy that admits members with tokens of the issuer for `cart`.
fn for_members(mode: &str) -> AuthorizationTable {
    let policy = serde_json::json!({"service": "shop/cart", "authorization": {
        "mode": mode,
        "tokens": [{"issuer": ISSUER, "audiences": ["cart"]}],
        "rules": [{"name": "members", "when": [{"claim": "groups", "values": ["members"]}]}],
    }});
    table(&policy, &"deny".into())
}

#[tokio::test]
async fn user_token_that_policy_does_not_accept_is_refused_with_401() {
    let (layer, issuer, other) = (layer(Some(for_members("enforce"))), Issuer::new(), Issuer::new());
    let member = |claims: Value| {
        let mut whole = serde_json::json!({"iss": ISSUER, "aud": ["cart"], "groups": ["members"]});
        claims.as_object().unwrap().iter().for_each(|(name, value)| whole[name] = value.clone());
        whole
    };
    let with = |bearer: &[HeaderValue]| {
        let mut request = request(Some(WEB), "GET", "/");
        for line in bearer {
            request.headers_mut().append(AUTHORIZATION, line.clone());
        }
        request
    };
    let good = issuer.bearer(member(serde_json::json!({})));
    assert_eq!(send(&layer, with(from_ref(&good))).await.status(), 503, "no issuers are known yet");
    layer.shared.authorizer.set_issuers(issuer.known());
    assert_eq!(send(&layer, with(from_ref(&good))).await.status(), 200);
    assert_eq!(send(&layer, with(&[])).await.status(), 403, "no rule allows it");
    assert_eq!(send(&layer, with(&["Basic abc".parse().unwrap()])).await.status(), 403, "it is no token");
    let past = system_time().as_secs() - 300;
    for bad in [
        other.bearer(member(serde_json::json!({}))),
        issuer.bearer(member(serde_json::json!({"aud": "other"}))),
        issuer.bearer(member(serde_json::json!({"iss": "https://evil.example"}))),
        issuer.bearer(member(serde_json::json!({"exp": past}))),
        "bearer x".parse().unwrap(),
    ] {
        let refused = send(&layer, with(&[bad])).await;
        assert_eq!(
            (refused.status(), &refused.headers()["www-authenticate"]),
            (StatusCode::UNAUTHORIZED, &HeaderValue::from_static("Bearer error=\"invalid_token\""))
        );
    }
    assert_eq!(send(&layer, with(&[good.clone(), good.clone()])).await.status(), 401, "which one counts?");
    layer.shared.authorizer.set(for_members("audit"));
    assert_eq!(send(&layer, with(&["Bearer x".parse().unwrap()])).await.status(), 200);
    assert_eq!(layer.admission().audited, 1);
}

#[tokio::test(start_paused = true)]
async fn upgraded_connection_ends_when_user_token_expires() {
    let (layer, issuer) = (layer(Some(for_members("enforce"))), Issuer::new());
    layer.shared.authorizer.set_issuers(issuer.known());
    let mut request = request(Some(WEB), "GET", "/chat");
    let claims = serde_json::json!({"iss": ISSUER, "aud": "cart", "groups": "members"});
    request.headers_mut().insert(AUTHORIZATION, issuer.bearer(claims));
    request.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    assert_eq!(layer.shared.authorizer.accept(&mut request), Ok(()));
    let call = AcceptedCall::of(&request);
    let mut revoked = pin!(layer.revoked(&call));
    layer.shared.authorizer.set(for_members("enforce"));
    assert!(revoked.as_mut().now_or_never().is_none(), "its claims count for a change too");
    tokio::time::timeout(Duration::from_secs(400), revoked).await.unwrap();
}

#[tokio::test]
async fn authorization_layer_agrees_with_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors/authorization.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut refused, issuer) = (0, Issuer::new());
    for case in vectors.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap()) {
        let layer = layer(Some(table(&case["policy"], &case["default"])));
        layer.shared.authorizer.set_issuers(issuer.known());
        for decision in case["decisions"].as_array().unwrap() {
            let call = &decision["call"];
            let (by, method, path) = (call[0].as_str(), call[1].as_str().unwrap(), call[2].as_str().unwrap());
            // Paths that no request can have are skipped.
            if path.parse::<http::Uri>().is_err() {
                continue;
            }
            let response = send(&layer, brought(request(by, method, path), &call[3], &issuer)).await;
            let expected = match decision["permitted"].as_bool().unwrap() {
                true => StatusCode::OK,
                false => StatusCode::FORBIDDEN,
            };
            assert_eq!(response.status(), expected, "{decision}");
            refused += u64::from(expected == StatusCode::FORBIDDEN);
        }
    }
    assert!(refused > 20);
}

#[tokio::test]
async fn forwarded_health_probe_drops_headers_that_change_its_meaning() {
    let probed = serde_json::json!({"service": "shop/cart", "healthCheck": {"http": {"path": "/healthz"}}});
    let layer = layer(Some(table(&probed, &"deny".into())));
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let names: Vec<_> = request.headers().keys().map(ToString::to_string).collect();
        let words = names.join(" ");
        Ok::<_, Infallible>(Response::builder().header("x-seen", words).body(String::new()).unwrap())
    }));
    let probe = || {
        let mut probe = request(Some("spiffe://prod/fairmesh/agent/web-1"), "GET", "/healthz");
        for name in
            ["host", "user-agent", "x-original-url", "x-http-method-override", "upgrade", "connection"]
        {
            probe.headers_mut().insert(name, HeaderValue::from_static("a"));
        }
        probe
    };
    let seen = service.clone().oneshot(probe()).await.unwrap();
    assert_eq!(seen.headers()["x-seen"], "host user-agent");
    let mut with_body = probe();
    with_body.headers_mut().insert("content-length", HeaderValue::from_static("7"));
    assert_eq!(service.oneshot(with_body).await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn grpc_refusal_has_non_retryable_status() {
    let none = serde_json::json!({"service": "shop/cart", "authorization": {}});
    let layer = layer(Some(table(&none, &"allow".into())));
    let mut call = request(Some(WEB), "POST", "/shop.v1.Cart/Get");
    call.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let response = send(&layer, call).await;
    assert_eq!(response.headers()[GRPC_STATUS], "7");
    assert_eq!(response.headers()[FAULT], UNAUTHORIZED);
    let admission = layer.admission();
    assert_eq!((admission.unauthorized, admission.audited), (1, 0));
}

#[tokio::test]
async fn handlers_see_authenticated_caller_without_untrusted_identity_headers() {
    let policy = serde_json::json!({"service": "shop/cart", "authorization": {
        "rules": [{"name": "web", "from": ["shop/web", "shop/other"]}], "intermediaries": ["shop/gateway"],
    }});
    let layer = layer(Some(table(&policy, &"allow".into())));
    let stated = |by: &str| {
        let mut request = request(None, "GET", "/");
        let tcp = TcpConnectInfo { local_addr: None, remote_addr: None };
        // As connections of tonic's server set it.
        request.extensions_mut().insert(ConnectInfo { tcp, caller: Some(caller(by)) });
        request.headers_mut().insert(CALLER, HeaderValue::from_static(WEB));
        request
    };
    let own = send(&layer, stated("spiffe://prod/shop/other")).await;
    assert_eq!(own.headers()["x-seen"], "spiffe://prod/shop/other via None");
    assert!(!own.headers().contains_key("x-stated"));
    assert_eq!(own.headers()["x-address"], "yes");
    let through = send(&layer, stated("spiffe://prod/shop/gateway")).await;
    assert_eq!(through.headers()["x-seen"], format!("{WEB} via Some(\"spiffe://prod/shop/gateway\")"));
    let mut twice = stated("spiffe://prod/shop/gateway");
    twice.headers_mut().append(CALLER, HeaderValue::from_static(WEB));
    assert_eq!(send(&layer, twice).await.status(), StatusCode::FORBIDDEN);
}

#[test]
fn caller_named_by_intermediary_is_authorized_on_accepted_connection() {
    let rules = serde_json::json!([
        {"name": "web", "from": ["shop/web"], "paths": [{"exact": "/cart"}]},
        {"name": "other", "from": ["shop/other"]},
    ]);
    let policy = serde_json::json!({"service": "shop/cart", "authorization": {
        "rules": rules, "intermediaries": ["shop/gateway"],
    }});
    let layer = layer(Some(table(&policy, &"deny".into())));
    let [gateway, other] = ["spiffe://prod/shop/gateway", "spiffe://prod/shop/other"];
    let seen = |by: &str, stated: &[&'static str], path: &str| {
        let mut request = request(None, "GET", path);
        for id in stated {
            request.headers_mut().append(CALLER, HeaderValue::from_static(id));
        }
        let through = layer.shared.authorizer.caller_through(&mut request, Some(&caller(by)));
        through.map(|caller| caller.unwrap().id().to_string())
    };
    assert_eq!(seen(gateway, &[WEB], "/cart"), Ok(WEB.to_owned()));
    assert_eq!(seen(other, &[WEB], "/cart"), Ok(other.to_owned()), "its connection was judged");
    let refused = Err(NotAccepted::Refused);
    assert_eq!(seen(gateway, &[WEB], "/admin"), refused, "the caller that it states may not");
    assert_eq!(seen(gateway, &["spiffe://prod/shop/stranger"], "/cart"), refused);
    assert_eq!(seen(gateway, &[], "/cart"), refused, "itself may not either");
    assert_eq!(seen(gateway, &[WEB, WEB], "/cart"), refused);
    let intermediary = |id: &str| Identity::Spiffe(id.parse().unwrap());
    assert!(layer.shared.authorizer.is_intermediary(&intermediary(gateway)));
    assert!(!layer.shared.authorizer.is_intermediary(&intermediary(other)));
    let without = serde_json::json!({"service": "shop/cart", "authorization": {"rules": rules}});
    layer.shared.authorizer.set(table(&without, &"deny".into()));
    assert_eq!(seen(gateway, &[WEB], "/cart"), refused, "its connection was accepted as an intermediary's");
    assert_eq!(seen(other, &[], "/cart"), Ok(other.to_owned()));
}

/// The identity of a server that learns late that callers prove theirs.
#[derive(Debug, Default)]
struct LateTls {
    speaks_tls: AtomicBool,
    changes: watch::Sender<()>,
}

impl TlsIdentity for LateTls {
    fn is_ready(&self) -> bool {
        self.speaks_tls()
    }

    fn speaks_tls(&self) -> bool {
        self.speaks_tls.load(Relaxed)
    }

    fn tls_changes(&self) -> Option<watch::Receiver<()>> {
        Some(self.changes.subscribe())
    }

    fn id(&self) -> Option<SpiffeId> {
        None
    }

    fn connect(&self, _: ExpectedPeer<'_>, _: TcpStream) -> Handshake {
        unreachable!()
    }

    fn accept(&self, _: TcpStream) -> Handshake {
        unreachable!()
    }

    fn accept_federated(&self, _: TcpStream, _: &Arc<FederatedCallers>) -> Handshake {
        unreachable!()
    }

    fn accept_joining(&self, _: TcpStream) -> Handshake {
        unreachable!()
    }
}

#[test]
fn plaintext_calls_are_revoked_when_server_switches_to_mutual_tls() {
    let identity = Arc::new(LateTls::default());
    let transport = Transport::tls(Arc::clone(&identity) as Arc<_>).of_server();
    let authorizer = Authorizer::of_server(ServiceName::new("shop/cart").unwrap(), &transport);
    authorizer.set(table(&serde_json::json!({"service": "shop/cart"}), &"allow".into()));
    let plaintext = || request(None, "GET", "/");
    let call = AcceptedCall::of(&plaintext());
    let mut revoked = pin!(authorizer.call_revoked(&call));
    assert!(revoked.as_mut().now_or_never().is_none());
    assert!(authorizer.caller_through(&mut plaintext(), None).is_ok());
    identity.speaks_tls.store(true, Relaxed);
    identity.changes.send_replace(());
    assert!(revoked.now_or_never().is_some(), "the policy is the same");
    let through = authorizer.caller_through(&mut plaintext(), None);
    assert_eq!(through.map(drop), Err(NotAccepted::Refused));
}

#[tokio::test]
async fn mtls_server_refuses_calls_before_its_policy() {
    let response = send(&layer(None), request(Some(WEB), "GET", "/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(&ServerLayer::default(), request(None, "GET", "/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn accepted_call_is_revoked_when_policy_refuses_it() {
    let allow = |caller: &str| {
        let rule = serde_json::json!({"name": "chat", "from": [caller], "paths": [{"exact": "/chat"}]});
        let policy = serde_json::json!({"service": "shop/cart", "authorization": {"rules": [rule]}});
        table(&policy, &"deny".into())
    };
    let layer = layer(Some(allow("shop/web")));
    let call = AcceptedCall::of(&request(Some(WEB), "GET", "/chat"));
    let mut revoked = pin!(layer.revoked(&call));
    assert!(revoked.as_mut().now_or_never().is_none());
    // A policy change that still allows the call does not revoke it.
    layer.shared.authorizer.set(allow("shop/web"));
    assert!(revoked.as_mut().now_or_never().is_none());
    layer.shared.authorizer.set(allow("shop/other"));
    assert!(revoked.now_or_never().is_some());
}
