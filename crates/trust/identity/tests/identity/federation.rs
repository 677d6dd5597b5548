//! Tests of federated trust domains: in handshakes, on open connections, and on resumed sessions.

use std::{collections::BTreeSet, io, sync::Arc};

use fairmesh_identity::{Credentials, PrivateKey, Workload, read_bundle_document};
use fairmesh_model::{
    FederatedDomains, Identity, Revocation, Revocations, RevokedCertificates, SpiffeId, SpiffePath,
    TrustBundle, TrustDomain,
};
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, SecureStream, TlsIdentity as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

const WEB: &str = "spiffe://partner/bank/web";

type Ends = (io::Result<Box<dyn SecureStream>>, io::Result<Box<dyn SecureStream>>);

fn partner() -> Ca {
    Ca::of(&TrustDomain::new("partner").unwrap(), now())
}

fn federated(with: &Ca) -> FederatedDomains {
    FederatedDomains { bundles: vec![with.authority.bundle()], ..Default::default() }
}

fn callers(named: &[&str]) -> Arc<FederatedCallers> {
    let callers = FederatedCallers::default();
    callers.accept(named.iter().map(|id| id.parse().unwrap()).collect::<BTreeSet<SpiffeId>>());
    Arc::new(callers)
}

/// Opens a connection and returns both ends. The caller expects the id `expected`; the server accepts the ids
/// `named`.
async fn open(caller: &Workload, server: &Workload, expected: &str, named: &[&str]) -> Ends {
    let expected: SpiffeId = expected.parse().unwrap();
    let SpiffePath::Service(service) = &expected.path else { panic!("no service: {expected}") };
    // Within its own domain, the caller expects a service by name.
    let peer = match caller.credentials().unwrap().id().domain == expected.domain {
        true => ExpectedPeer::Service(service),
        false => ExpectedPeer::Id(&expected),
    };
    open_to(caller, server, peer, named).await
}

async fn open_to(caller: &Workload, server: &Workload, peer: ExpectedPeer<'_>, named: &[&str]) -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let named = callers(named);
    let dial = async {
        let stream = TcpStream::connect(address).await?;
        let mut stream = caller.connect(peer, stream).await?;
        // In TLS 1.3 a client learns on its first read whether it is accepted. The same read receives session
        // tickets.
        stream.read_u8().await?;
        Ok(stream)
    };
    let accept = async {
        let mut stream = server.accept_federated(listener.accept().await?.0, &named).await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        Ok(stream)
    };
    soon(async { tokio::join!(dial, accept) }).await
}

#[tokio::test]
async fn caller_of_federated_trust_domain_is_accepted_if_named_in_policy() {
    let (prod, partner) = (Ca::default(), partner());
    let (cart, web) = (prod.workload("shop/cart"), partner.workload("bank/web"));
    web.federate(federated(&prod));
    let cart_id = "spiffe://prod/shop/cart";
    let error = open(&web, &cart, cart_id, &[WEB]).await.1.unwrap_err().to_string();
    assert!(error.contains("not issued by the trust domain prod"), "{error}");
    cart.federate(federated(&partner));
    // The first handshake is full. The second resumes a session, which verifies nothing.
    for _ in 0..2 {
        let (dialled, accepted) = open(&web, &cart, cart_id, &[WEB]).await;
        assert_eq!(accepted.unwrap().peer(), Identity::Federated(WEB.parse().unwrap()));
        assert_eq!(dialled.unwrap().peer(), Identity::Federated(cart_id.parse().unwrap()));
        for named in [&[][..], &["spiffe://partner/bank/api"], &["spiffe://prod/bank/web"]] {
            let (dialled, accepted) = open(&web, &cart, cart_id, named).await;
            let error = accepted.unwrap_err().to_string();
            assert!(error.contains(WEB) && error.contains("no policy"), "{error}");
            // The server sends an alert. If it merely closed the connection, the request might have been read.
            let error = dialled.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
        }
    }
    let (_dialled, accepted) = open(&web, &cart, cart_id, &[WEB]).await;
    let mut accepted = accepted.unwrap();
    cart.federate(FederatedDomains::default());
    let error = soon(accepted.read_u8()).await.unwrap_err().to_string();
    assert!(error.contains("partner is not federated"), "{error}");
    open(&web, &cart, cart_id, &[WEB]).await.1.unwrap_err();
}

#[tokio::test]
async fn server_ends_connections_when_federated_root_of_client_is_removed() {
    let (prod, old, new) = (Ca::default(), partner(), partner());
    let (cart, web) = (prod.workload("shop/cart"), old.workload("bank/web"));
    let cart_id = "spiffe://prod/shop/cart";
    let both = || {
        let roots = [old.authority.bundle().roots, new.authority.bundle().roots].concat();
        let bundles = vec![TrustBundle::new(old.authority.bundle().domain, roots)];
        FederatedDomains { bundles, ..Default::default() }
    };
    cart.federate(federated(&old));
    web.federate(federated(&prod));
    let (dialled, accepted) = open(&web, &cart, cart_id, &[WEB]).await;
    let (_dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());

    // The partner rotates its root. Meanwhile both roots are trusted, and no connection ends.
    cart.federate(both());
    let renewed = new.workload("bank/web");
    renewed.federate(federated(&prod));
    let (others_end, other) = open(&renewed, &cart, cart_id, &[WEB]).await;
    let (mut others_end, mut other) = (others_end.unwrap(), other.unwrap());
    let (resumable, _resumable) = open(&web, &cart, cart_id, &[WEB]).await;
    resumable.unwrap();

    cart.federate(federated(&new));
    let error = soon(accepted.read_u8()).await.unwrap_err().to_string();
    assert!(error.contains("not issued by the trust domain partner"), "{error}");
    others_end.write_all(b"x").await.unwrap();
    others_end.flush().await.unwrap();
    assert_eq!(soon(other.read_u8()).await.unwrap(), b'x', "the new root vouches for this one");
    // Refused both in a full handshake and on a resumed session.
    for _ in 0..2 {
        let error = open(&web, &cart, cart_id, &[WEB]).await.1.unwrap_err().to_string();
        assert!(error.contains("not issued by the trust domain partner"), "{error}");
    }
    // Sessions under the old root do not affect the same process with a certificate under the new root.
    web.install(new.credentials("bank/web", now())).unwrap();
    open(&web, &cart, cart_id, &[WEB]).await.1.unwrap();
}

#[tokio::test]
async fn client_ends_connection_when_federated_root_of_server_is_removed() {
    let (prod, other, partner) = (Ca::default(), Ca::default(), partner());
    let (cart, web) = (prod.workload("shop/cart"), partner.workload("bank/web"));
    let cart_id = "spiffe://prod/shop/cart";
    cart.federate(federated(&partner));
    web.federate(federated(&prod));
    let (dialled, accepted) = open(&web, &cart, cart_id, &[WEB]).await;
    let (mut dialled, _accepted) = (dialled.unwrap(), accepted.unwrap());
    web.federate(federated(&other));
    let error = soon(dialled.read_u8()).await.unwrap_err().to_string();
    assert!(error.contains("not issued by the trust domain prod"), "{error}");
    let error = open(&web, &cart, cart_id, &[WEB]).await.0.unwrap_err().to_string();
    assert!(error.contains("not issued by the trust domain prod"), "{error}");
    // A server with a new certificate is not accepted on the old session.
    let moved = other.workload("shop/cart");
    moved.federate(federated(&partner));
    open(&web, &moved, cart_id, &[WEB]).await.0.unwrap();
}

#[tokio::test]
async fn federated_roots_vouch_only_for_their_trust_domain() {
    let (prod, partner) = (Ca::default(), partner());
    let (cart, web) = (prod.workload("shop/cart"), partner.workload("bank/web"));
    cart.federate(federated(&partner));
    web.federate(federated(&prod));
    // The other authority issues an id of this domain, which even its own processes would accept.
    let forged = {
        let key = PrivateKey::generate().unwrap();
        let request = key.signing_request().unwrap();
        let issued = partner.authority.issue(&request, &id("shop/web"), now()).unwrap();
        // The client accepts the server, so that the server is the side that refuses.
        let roots = [partner.authority.bundle().roots, prod.authority.bundle().roots].concat();
        let bundle = fairmesh_model::TrustBundle::new(domain(), roots);
        let forged = Workload::default();
        forged.install(Credentials::new(key, issued.chain, bundle, now()).unwrap()).unwrap();
        forged.federate(federated(&prod));
        forged
    };
    let (_, accepted) = open(&forged, &cart, "spiffe://prod/shop/cart", &["spiffe://prod/shop/web"]).await;
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("not issued by the trust domain prod"), "{error}");
    // Listeners of the mesh accept only their own domain, even if other domains are federated. So does a client that
    // expects a member.
    let (agent, control) = (partner.transport("fairmesh/agent/web-1"), prod.workload("fairmesh/control/one"));
    control.federate(federated(&partner));
    let (_, accepted) = connect(&agent, &fairmesh_wire::transport::Transport::tls(control)).await;
    accepted.unwrap_err();
    let member = prod.workload("fairmesh/agent/web-1");
    member.federate(federated(&partner));
    let impostor = partner.transport("fairmesh/control/one");
    let (dialled, _) = connect(&fairmesh_wire::transport::Transport::tls(member), &impostor).await;
    dialled.unwrap_err();
    // A revocation covers ids of this domain, but not the same names in another domain.
    let path = "bank/web".parse().unwrap();
    let entries = vec![Revocation { path, certificates: RevokedCertificates::All, at: 0 }];
    cart.revoke(Revocations { entries });
    open(&web, &cart, "spiffe://prod/shop/cart", &[WEB]).await.1.unwrap();
    // A record cannot name an identity of a process's own domain.
    let own = prod.workload("shop/web");
    let (dialled, _) = open_to(&own, &cart, ExpectedPeer::Id(&id("shop/cart")), &[WEB]).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("an id of this mesh's own trust domain"), "{error}");
    // A server with another id of the same domain is not the expected server.
    let (dialled, _) = open(&web, &cart, "spiffe://prod/shop/other", &[WEB]).await;
    assert!(dialled.unwrap_err().to_string().contains("not spiffe://prod/shop/other"));
}

#[test]
fn trusted_roots_are_read_from_pem_and_spiffe_bundles_within_limits() {
    let ca = partner();
    let domain = TrustDomain::new("partner").unwrap();
    let pem = std::fs::read(ca.folder.path().join("ca/bundle.pem")).unwrap();
    let read =
        |document: &[u8]| read_bundle_document(domain.clone(), document).map_err(|error| error.to_string());
    assert_eq!(read(&pem).unwrap(), ca.authority.bundle());
    let text = String::from_utf8(pem.clone()).unwrap();
    let base64: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = |x5c: &str| {
        format!("{{\"keys\": [{{\"use\": \"x509-svid\", \"x5c\": [{x5c}]}}, {{\"use\": \"jwt-svid\"}}]}}")
    };
    assert_eq!(read(key(&format!("\"{base64}\"")).as_bytes()).unwrap(), ca.authority.bundle());
    let twice = format!("\"{base64}\", \"{base64}\"");
    for (document, problem) in [
        (String::new(), "0 roots"),
        (text.repeat(9), "9 roots"),
        ("x".repeat(200_000), "bytes, not at most"),
        (key(&twice), "2 certificates in x5c"),
        (key("\"?\""), "no base64"),
        (key("\"AAAA\""), "not well-formed"),
    ] {
        let error = read(document.as_bytes()).unwrap_err();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}
