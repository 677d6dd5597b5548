//! Invalid certificates at every listener of a mesh with a trust domain: no listener accepts them.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_identity::{JoinToken, Member};
use fairmesh_listen::listener_table::{self, ListenerInfo, Peers};
use fairmesh_test_support::{AnyServer, free_port};
use fairmesh_wire::{handshake, transport::Transport, v1::ReadRequest};
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose as Eku, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, StreamOwned,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, runtime, start, token},
    support::{Mesh, wait_until},
    tokens::http_address,
};

/// HTTP/2 connection preface, to which a server responds at once.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HTTP1: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// A listener, as a row of the table.
struct Tested {
    row: &'static ListenerInfo,
    address: String,
    /// First bytes that a client sends.
    greeting: &'static [u8],
    /// Whether clients without a certificate may connect: to join, or as a user with a token.
    joins: bool,
    /// Whether the listener accepts plaintext beside TLS.
    speaks_plaintext: bool,
}

/// A mesh with every listener of its processes.
struct Fleet {
    mesh: Mesh,
    tested: Vec<Tested>,
    _processes: Vec<Killed>,
}

fn port() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn fleet() -> Fleet {
    let (mesh, control) = domain();
    let [replica, agent_tcp, lookaside, program, key_server] = [(); 5].map(|()| port());
    let (first, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    mesh.apply("kind: Service\nname: shop/catalog\n").ok();
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (replica_state, agent_state) = (text(mesh.path("replica")), text(mesh.path("web-2")));
    let behind = format!("127.0.0.1:{}", echo());
    let replicating = ["rib", "replica", "--name", "eu", "--admin", "none", "--upstream", &control];
    let replicating = [&replicating[..], &["--agent", &agent, "--listen", &replica]].concat();
    let upstream = mesh.address();
    let following = ["agent", "--name", "web-2", "--admin", "none", "--control"];
    let following = [&following[..], &[&upstream, "--listen", &agent_tcp]].concat();
    let picking = ["lookaside", "--listen", &lookaside, "--admin", "none", "--agent", &agent];
    // Any private key serves the purpose.
    let key = format!("edge={}", mesh.path("data/ca/issuer.key").display());
    let allowed = "edge=spiffe://prod/fairmesh/proxy/web-1.proxy";
    let signing = ["keyserver", "--listen", &key_server, "--admin", "none", "--agent", &agent];
    let registering = ["register", "shop/catalog", "--agent", &agent, "--address", &program];
    let processes = vec![
        first,
        start(&[&replicating[..], &["--state-dir", &replica_state]].concat(), None),
        start(&[&following[..], &["--state-dir", &agent_state]].concat(), None),
        start(&picking, None),
        start(&[&signing[..], &["--key", &key, "--allow", allowed]].concat(), None),
        start(&[&registering[..], &["--program", &behind]].concat(), None),
    ];
    let row =
        |row, address, greeting, joins| Tested { row, address, greeting, joins, speaks_plaintext: false };
    let http = Tested {
        speaks_plaintext: true,
        ..row(&listener_table::CONTROL_HTTP, http_address(&mesh), HTTP1, true)
    };
    let tested = vec![
        row(&listener_table::CONTROL_GRPC, control, HTTP2, true),
        row(&listener_table::REPLICA_GRPC, replica, HTTP2, true),
        row(&listener_table::AGENT_GRPC, agent_tcp, HTTP2, false),
        row(&listener_table::LOOKASIDE_GRPC, lookaside, HTTP2, false),
        row(&listener_table::KEYSERVER_GRPC, key_server, HTTP2, false),
        row(&listener_table::PROGRAM, program, HTTP1, false),
        http,
    ];
    Fleet { mesh, tested, _processes: processes }
}

/// Certificate chain and key that a client presents.
pub(crate) struct Shown {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: KeyPair,
}

fn at(minutes: i64) -> OffsetDateTime {
    #[allow(clippy::disallowed_methods, reason = "certificates of real processes are valid now")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    OffsetDateTime::from_unix_timestamp(i64::try_from(now).unwrap() + minutes * 60).unwrap()
}

pub(crate) fn params(id: &str, (begin, end): (i64, i64), usage: Eku) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    (params.not_before, params.not_after) = (at(begin), at(end));
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    params.extended_key_usages = vec![usage];
    params
}

/// Signs a certificate with the intermediate in a control plane's data directory.
pub(crate) fn signed(authority: &Path, params: &CertificateParams) -> Shown {
    let pem = fs::read(authority.join("issuer.key")).unwrap();
    let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).unwrap();
    let signer = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).unwrap();
    let above = CertificateDer::from_pem_slice(&pem).unwrap();
    let issuer = Issuer::from_ca_cert_der(&above, signer).unwrap();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    Shown { chain: vec![params.signed_by(&key, &issuer).unwrap().der().clone(), above.clone()], key }
}

/// Certificates that no listener accepts: from the mesh's authority, from an authority of the same name, and from that
/// of a federated trust domain.
fn bad(authority: &Path, other: &Path, federated: &Path) -> Vec<(&'static str, Shown)> {
    const VALID: (i64, i64) = (-10, 60);
    const ID: &str = "spiffe://prod/fairmesh/agent/web-1";
    let own = |id, validity, usage| signed(authority, &params(id, validity, usage));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let self_signed = params(ID, VALID, Eku::ClientAuth).self_signed(&key).unwrap().der().clone();
    let stolen = own(ID, VALID, Eku::ClientAuth);
    vec![
        ("expired", own(ID, (-60, -6), Eku::ClientAuth)),
        ("not valid yet", own(ID, (6, 60), Eku::ClientAuth)),
        ("of another domain", own("spiffe://test/fairmesh/agent/web-1", VALID, Eku::ClientAuth)),
        ("of a reserved tenant's unknown role", own("spiffe://prod/fairmesh/root/x", VALID, Eku::ClientAuth)),
        ("without a tenant", own("spiffe://prod/cart", VALID, Eku::ClientAuth)),
        ("for servers only", own(ID, VALID, Eku::ServerAuth)),
        ("of another authority of this name", signed(other, &params(ID, VALID, Eku::ClientAuth))),
        (
            "of a federated domain, and named by no policy",
            signed(federated, &params("spiffe://partner/fairmesh/agent/web-1", VALID, Eku::ClientAuth)),
        ),
        (
            "of this domain by a federated one's authority",
            signed(federated, &params(ID, VALID, Eku::ClientAuth)),
        ),
        ("self-signed", Shown { chain: vec![self_signed], key }),
        ("stolen", Shown { key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap(), ..stolen }),
    ]
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// Whether the listener responds to a client with this certificate.
fn accepts(tested: &Tested, shown: Option<&Shown>) -> io::Result<()> {
    let config = ClientConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer));
    let config = match shown {
        None => config.with_no_client_auth(),
        Some(Shown { chain, key }) => {
            let key = PrivatePkcs8KeyDer::from(key.serialized_der().to_vec());
            let provider = default_provider();
            let key = provider.key_provider.load_private_key(key.into()).unwrap();
            let certified = tokio_rustls::rustls::sign::CertifiedKey::new(chain.clone(), key);
            let resolver = tokio_rustls::rustls::sign::SingleCertAndKey::from(certified);
            config.with_client_cert_resolver(Arc::new(resolver))
        }
    };
    let session = ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, connect(&tested.address)?);
    stream.write_all(tested.greeting)?;
    stream.read_exact(&mut [0])
}

/// Whether the listener responds to plaintext.
fn accepts_plaintext(tested: &Tested) -> bool {
    let mut stream = connect(&tested.address).unwrap();
    stream.write_all(tested.greeting).unwrap();
    let mut first = [0];
    // The first byte of a TLS alert is 21.
    matches!(stream.read(&mut first), Ok(1)) && first != [21]
}

#[test]
fn no_listener_accepts_invalid_client_certificate() {
    let fleet = fleet();
    let mesh = &fleet.mesh;
    let other = domain().0;
    let mut partner = Mesh::empty();
    partner.arguments = ["--trust-domain", "partner"].map(String::from).to_vec();
    partner.start_control();
    let (authority, other) = (mesh.path("data/ca"), other.path("data/ca"));
    let federated = partner.path("data/ca");
    let roots = federated.join("bundle.pem");
    mesh.run(&["identity", "federation", "add", "partner", "--bundle", roots.to_str().unwrap()]).ok();
    mesh.apply(
        "kind: Policy\nservice: shop/catalog\nauthorization:\n  rules: [{name: all, from: ['*', spiffe://partner/bank/web]}]\n",
    )
    .ok();
    let named = signed(&federated, &params("spiffe://partner/bank/web", (-10, 60), Eku::ClientAuth));
    let good = signed(&authority, &params("spiffe://prod/shop/cart", (-10, 60), Eku::ClientAuth));
    for row in listener_table::LISTENERS {
        // The others are Unix sockets, operators' pages, and listeners for clients outside the mesh. `gateway::lies`
        // tries invalid certificates at nodes and gateways.
        let is_tried_there = ["node", "gateway"].contains(&row.process);
        let is_tested = row.peers != Peers::Mesh
            || is_tried_there
            || fleet.tested.iter().any(|tested| tested.row == *row);
        assert!(is_tested, "no bad certificate is tried at {row:?}; add it to the fleet");
    }
    let mut refused = 0;
    for tested in &fleet.tested {
        let name = format!("{} {}", tested.row.process, tested.row.name);
        wait_until(&format!("{name} accepts a good certificate"), || accepts(tested, Some(&good)).is_ok());
        if *tested.row == listener_table::PROGRAM {
            wait_until(&format!("{name} accepts whom its policy names"), || {
                accepts(tested, Some(&named)).is_ok()
            });
        } else {
            assert!(
                accepts(tested, Some(&named)).is_err(),
                "{name} accepts whom the policy of a service names"
            );
        }
        for (case, shown) in bad(&authority, &other, &federated) {
            assert!(accepts(tested, Some(&shown)).is_err(), "{name} accepts one that is {case}");
            refused += 1;
        }
        assert_eq!(accepts_plaintext(tested), tested.speaks_plaintext, "{name}, in plaintext");
        assert_eq!(accepts(tested, None).is_ok(), tested.joins, "{name}, without a certificate");
    }
    assert_eq!(refused, 11 * fleet.tested.len());
}

/// Time limit of a handshake from the start of the connection, and the tolerance on a busy machine.
const HANDSHAKE: Duration = Duration::from_secs(10 + 8);
/// Number of unfinished handshakes per listener and kind.
const FLOOD: usize = 48;

/// A TLS ClientHello.
fn hello() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap().dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(AnyServer)).with_no_client_auth();
    let mut session = ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn unfinished_tls_handshakes_are_closed_and_delay_no_caller() {
    let fleet = fleet();
    let authority = fleet.mesh.path("data/ca");
    let good = signed(&authority, &params("spiffe://prod/shop/cart", (-10, 60), Eku::ClientAuth));
    let name = |tested: &Tested| format!("{} {}", tested.row.process, tested.row.name);
    for tested in &fleet.tested {
        wait_until(&format!("{} is up", name(tested)), || accepts(tested, Some(&good)).is_ok());
    }
    let hello = hello();
    let mut open = Vec::new();
    for tested in &fleet.tested {
        // Half a message, and a whole one after which the server waits for the client.
        for said in [&hello[..hello.len() / 2], &hello] {
            for _ in 0..FLOOD {
                let mut stream = connect(&tested.address).unwrap();
                stream.write_all(said).unwrap();
                open.push((name(tested), stream, Instant::now()));
            }
        }
    }
    for tested in &fleet.tested {
        accepts(tested, Some(&good))
            .unwrap_or_else(|error| panic!("{} accepts nobody: {error}", name(tested)));
    }
    for (name, mut stream, began) in open {
        let left = (began + HANDSHAKE).saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        let ended = stream.read_to_end(&mut Vec::new());
        let is_open = ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(!is_open, "{name} keeps a handshake that is not ended");
    }
}

#[test]
fn client_without_certificate_can_only_join() {
    let fleet = fleet();
    let token: JoinToken = token(&fleet.mesh, &["web-9"]).parse().unwrap();
    let transport = Transport::tls(Arc::new(Member::new(Arc::default(), Some(token))));
    for tested in fleet.tested.iter().filter(|tested| tested.joins && tested.row.peers == Peers::Mesh) {
        let address = tested.address.parse().unwrap();
        runtime().block_on(async {
            let connection = loop {
                match handshake::connect(&transport, &address, "test").await {
                    Ok(connection) => break connection,
                    // A replica waits for its agent.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            let request = ReadRequest { prefixes: vec!["/".into()], at_least: None };
            let refused = connection.rib().read(request).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused}");
            connection.watch().await.unwrap_err();
            let joining = fairmesh_wire::v1::JoinRequest { agent: "web-9".into(), ..Default::default() };
            let refused = connection.identity().join(joining).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied, "the request is read: {refused}");
        });
    }
}
