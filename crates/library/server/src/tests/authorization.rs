//! Who may call a server of the library, as `vectors/` says.

use std::{convert::Infallible, path::Path, pin::pin, sync::Arc};

use fairmesh_model::{
    Identity, ServiceName,
    spec::{DefaultAuthorizationSpec, PolicySpec},
};
use fairmesh_router::AuthorizationTable;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tonic::transport::server::TcpConnectInfo;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{
    Caller, ConnectInfo, ServerLayer,
    authorization::{AcceptedCall, Authorizer, NotAccepted},
    layer::LayerState,
};
use fairmesh_headers::{CALLER, FAULT, GRPC_STATUS};

const WEB: &str = "spiffe://prod/shop/web";

fn table(policy: &Value, default: &Value) -> AuthorizationTable {
    let spec: PolicySpec = serde_json::from_value(policy.clone()).unwrap();
    let default = DefaultAuthorizationSpec { default: default.as_str().unwrap().into() };
    let checkers = ["web-1".parse().unwrap()].into();
    AuthorizationTable::compile(&spec.validate().unwrap().1, default.validate().unwrap(), Some(checkers))
}

/// A layer of a server whose callers prove identities, before and after its policy is known.
fn layer(table: Option<AuthorizationTable>) -> ServerLayer {
    let authorizer = Authorizer::new(ServiceName::new("shop/cart").unwrap(), true);
    table.into_iter().for_each(|table| authorizer.set(table));
    ServerLayer { shared: Arc::new(LayerState { authorizer: Arc::new(authorizer), ..LayerState::default() }) }
}

fn caller(id: &str) -> Caller {
    Caller::of(&Identity::Spiffe(id.parse().unwrap())).unwrap()
}

/// The response of a handler that says who calls.
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

#[tokio::test]
async fn authorization_layer_decides_as_the_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors/authorization.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut refused = 0;
    for case in vectors.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap()) {
        let layer = layer(Some(table(&case["policy"], &case["default"])));
        for decision in case["decisions"].as_array().unwrap() {
            let call = &decision["call"];
            let (by, method, path) = (call[0].as_str(), call[1].as_str().unwrap(), call[2].as_str().unwrap());
            // What no request can have.
            if path.parse::<http::Uri>().is_err() {
                continue;
            }
            let response = send(&layer, request(by, method, path)).await;
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
async fn probe_drops_headers_that_change_the_request() {
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
async fn grpc_refusal_has_a_status_that_is_not_retried() {
    let none = serde_json::json!({"service": "shop/cart", "authorization": {}});
    let layer = layer(Some(table(&none, &"allow".into())));
    let mut call = request(Some(WEB), "POST", "/shop.v1.Cart/Get");
    call.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let response = send(&layer, call).await;
    assert_eq!(response.headers()[GRPC_STATUS], "7");
    assert!(!response.headers().contains_key(FAULT));
    let admission = layer.admission();
    assert_eq!((admission.unauthorized, admission.audited), (1, 0));
}

#[tokio::test]
async fn handlers_see_the_caller_and_ignore_untrusted_statements() {
    let policy = serde_json::json!({"service": "shop/cart", "authorization": {
        "rules": [{"name": "web", "from": ["shop/web", "shop/other"]}], "intermediaries": ["shop/gateway"],
    }});
    let layer = layer(Some(table(&policy, &"allow".into())));
    let stated = |by: &str| {
        let mut request = request(None, "GET", "/");
        let tcp = TcpConnectInfo { local_addr: None, remote_addr: None };
        // As connections of tonic's server have it.
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
fn caller_on_an_accepted_connection_is_who_an_intermediary_states() {
    let policy = serde_json::json!({"service": "shop/cart", "authorization": {
        "rules": [{"name": "web", "from": ["shop/gateway", "shop/other"]}], "intermediaries": ["shop/gateway"],
    }});
    let layer = layer(Some(table(&policy, &"allow".into())));
    let mut headers = HeaderMap::new();
    headers.append(CALLER, HeaderValue::from_static(WEB));
    let seen = |by: &str, headers: &HeaderMap| {
        let through = layer.shared.authorizer.caller_through(headers, &caller(by));
        through.map(|caller| caller.id().to_string())
    };
    let [gateway, other] = ["spiffe://prod/shop/gateway", "spiffe://prod/shop/other"];
    assert_eq!(seen(gateway, &headers), Ok(WEB.to_owned()));
    assert_eq!(seen(gateway, &HeaderMap::new()), Ok(gateway.to_owned()));
    assert_eq!(seen(other, &headers), Ok(other.to_owned()));
    headers.append(CALLER, HeaderValue::from_static(WEB));
    assert_eq!(seen(gateway, &headers), Err(NotAccepted::Refused));
}

#[tokio::test]
async fn mtls_server_accepts_no_call_before_its_policy() {
    let response = send(&layer(None), request(Some(WEB), "GET", "/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(&ServerLayer::default(), request(None, "GET", "/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn accepted_call_is_revoked_when_the_policy_refuses_it() {
    let allow = |caller: &str| {
        let rule = serde_json::json!({"name": "chat", "from": [caller], "paths": [{"exact": "/chat"}]});
        let policy = serde_json::json!({"service": "shop/cart", "authorization": {"rules": [rule]}});
        table(&policy, &"deny".into())
    };
    let layer = layer(Some(allow("shop/web")));
    let call = AcceptedCall::of(&request(Some(WEB), "GET", "/chat"));
    let mut revoked = pin!(layer.revoked(&call));
    assert!(revoked.as_mut().now_or_never().is_none());
    // A change that still allows the call ends nothing.
    layer.shared.authorizer.set(allow("shop/web"));
    assert!(revoked.as_mut().now_or_never().is_none());
    layer.shared.authorizer.set(allow("shop/other"));
    assert!(revoked.now_or_never().is_some());
}
