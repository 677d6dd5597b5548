//! Sends every kind of invalid certificate, as a client and as a server: none is accepted.

use std::{io, sync::Arc, time::Duration};

use fairmesh_test_support::AnyServer;
use fairmesh_wire::transport::{ExpectedPeer, TlsIdentity as _};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose as Eku, IsCa, Issuer,
    KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use time::OffsetDateTime;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, ServerConfig,
        client::ResolvesClientCert,
        crypto::aws_lc_rs::{default_provider, sign::any_ecdsa_type},
        pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};

use crate::support::*;

/// Begin and end of the validity, in minutes from now.
type Validity = (i64, i64);
const VALID: Validity = (-10, 60);
const BOTH: [Eku; 2] = [Eku::ClientAuth, Eku::ServerAuth];
const CART: &str = "spiffe://prod/shop/cart";

/// The sides that must refuse the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusingSide {
    Both,
    /// Only clients: the identity may call services of the domain, but is not the expected service.
    Clients,
    Servers,
    Nobody,
}

struct PresentedCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

fn minutes(minutes: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(i64::try_from(now().as_secs()).unwrap() + minutes * 60).unwrap()
}

fn params(names: &[&str], usages: &[Eku], (begin, end): Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    (params.not_before, params.not_after) = (minutes(begin), minutes(end));
    let name = |name: &&str| match name.strip_prefix("dns:") {
        Some(dns) => SanType::DnsName(dns.try_into().unwrap()),
        None => SanType::URI((*name).try_into().unwrap()),
    };
    params.subject_alt_names = names.iter().map(name).collect();
    params.extended_key_usages = usages.to_vec();
    params
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

/// Returns the intermediate of an authority, for signing arbitrary certificates.
fn issuer(ca: &Ca) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let pem = std::fs::read(ca.folder.path().join("ca/issuer.key")).unwrap();
    let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).unwrap();
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateDer::from_pem_slice(&pem).unwrap();
    let issuer = Issuer::from_ca_cert_der(&certificate, key).unwrap();
    (certificate, issuer)
}

fn signed_by(ca: &Ca, params: &CertificateParams) -> PresentedCertificate {
    let (above, issuer) = issuer(ca);
    let key = key();
    let chain = vec![params.signed_by(&key, &issuer).unwrap().der().clone(), above];
    PresentedCertificate { chain, key }
}

fn self_signed(params: &CertificateParams) -> PresentedCertificate {
    let key = key();
    PresentedCertificate { chain: vec![params.self_signed(&key).unwrap().der().clone()], key }
}

/// Returns a certificate issued by a process whose own certificate is valid but not an authority's.
fn signed_by_a_process(ca: &Ca) -> PresentedCertificate {
    let above = params(&[CART], &BOTH, VALID);
    let process = signed_by(ca, &above);
    let issuer = Issuer::from_params(&above, &process.key);
    let key = key();
    let leaf = params(&[CART], &BOTH, VALID).signed_by(&key, &issuer).unwrap().der().clone();
    PresentedCertificate { chain: [vec![leaf], process.chain].concat(), key }
}

fn without_intermediate(mut shown: PresentedCertificate) -> PresentedCertificate {
    shown.chain.truncate(1);
    shown
}

/// Returns a certificate that is presented without its key.
fn stolen(shown: PresentedCertificate) -> PresentedCertificate {
    PresentedCertificate { key: key(), ..shown }
}

fn padded(mut shown: PresentedCertificate) -> PresentedCertificate {
    shown.chain.extend(std::iter::repeat_n(shown.chain[1].clone(), 5));
    shown
}

fn authority_as_process() -> CertificateParams {
    let mut params = params(&[CART], &BOTH, VALID);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn cases(ca: &Ca) -> Vec<(&'static str, RefusingSide, PresentedCertificate)> {
    use RefusingSide::{Both, Clients, Nobody, Servers};
    let other = Ca::default();
    let signed = |names: &[&str], usages: &[Eku], validity| signed_by(ca, &params(names, usages, validity));
    let named = |names: &[&str]| signed(names, &BOTH, VALID);
    let good = || named(&[CART]);
    vec![
        ("good", Nobody, good()),
        ("expired within skew", Nobody, signed(&[CART], &BOTH, (-60, -4))),
        ("not valid yet within skew", Nobody, signed(&[CART], &BOTH, (4, 60))),
        ("expired", Both, signed(&[CART], &BOTH, (-60, -6))),
        ("not valid yet", Both, signed(&[CART], &BOTH, (6, 60))),
        ("wrong tenant", Clients, named(&["spiffe://prod/market/cart"])),
        ("wrong name", Clients, named(&["spiffe://prod/shop/checkout"])),
        ("a process of the mesh", Clients, named(&["spiffe://prod/fairmesh/agent/cart"])),
        ("self-signed", Both, self_signed(&params(&[CART], &BOTH, VALID))),
        ("self-signed authority", Both, self_signed(&authority_as_process())),
        ("another authority of this name", Both, signed_by(&other, &params(&[CART], &BOTH, VALID))),
        ("other domain", Both, named(&["spiffe://test/shop/cart"])),
        ("for code", Both, signed(&[CART], &[Eku::CodeSigning], VALID)),
        ("for no use", Both, signed(&[CART], &[], VALID)),
        ("for clients", Clients, signed(&[CART], &[Eku::ClientAuth], VALID)),
        ("for servers", Servers, signed(&[CART], &[Eku::ServerAuth], VALID)),
        ("no name", Both, named(&[])),
        ("two names", Both, named(&[CART, "spiffe://prod/shop/checkout"])),
        ("the same name twice", Both, named(&[CART, CART])),
        ("a host name", Both, named(&["dns:cart.shop"])),
        ("a host name too", Both, named(&[CART, "dns:cart.shop"])),
        ("another scheme", Both, named(&["https://prod/shop/cart"])),
        ("a longer path", Both, named(&["spiffe://prod/shop/cart/x"])),
        ("an authority's own", Both, signed_by(ca, &authority_as_process())),
        ("signed by a process", Both, signed_by_a_process(ca)),
        ("without the intermediate", Both, without_intermediate(good())),
        ("too long a chain", Both, padded(good())),
        ("stolen", Both, stolen(good())),
    ]
}

fn resolver(shown: &PresentedCertificate) -> Arc<SingleCertAndKey> {
    let der = PrivatePkcs8KeyDer::from(shown.key.serialized_der().to_vec()).into();
    let certified = CertifiedKey::new(shown.chain.clone(), any_ecdsa_type(&der).unwrap());
    Arc::new(SingleCertAndKey::from(certified))
}

fn client_config()
-> tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::client::WantsClientCert> {
    let config = ClientConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap();
    config.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer))
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(connecting, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Whether a correct server lets this client send data.
async fn server_accepts(ca: &Ca, config: ClientConfig) -> io::Result<()> {
    let (near, far) = pair().await;
    let server = ca.workload("shop/cart");
    let attempt = async {
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), near).await?;
        stream.write_all(b"x").await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    let serving = async {
        let mut stream = server.accept(far).await?;
        assert_eq!(stream.read_u8().await?, b'x');
        stream.write_all(b"y").await?;
        stream.flush().await
    };
    let (attempted, served) = soon(async { tokio::join!(attempt, serving) }).await;
    assert_eq!(attempted.is_ok(), served.is_ok());
    served
}

/// Whether a correct client that expects `shop/cart` sends data to this server.
async fn client_accepts(ca: &Ca, shown: &PresentedCertificate) -> io::Result<()> {
    let (near, far) = pair().await;
    let cart = "shop/cart".parse().unwrap();
    let client = ca.workload("shop/checkout");
    let config = ServerConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_cert_resolver(resolver(shown));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (connected, _) = soon(async {
        tokio::join!(client.connect(ExpectedPeer::Service(&cart), near), acceptor.accept(far))
    })
    .await;
    connected.map(drop)
}

#[tokio::test]
async fn no_invalid_certificate_is_accepted() {
    let ca = Ca::default();
    for (case, by, shown) in cases(&ca) {
        let resolver: Arc<dyn ResolvesClientCert> = resolver(&shown);
        let as_client = server_accepts(&ca, client_config().with_client_cert_resolver(resolver)).await;
        let accepted = matches!(by, RefusingSide::Nobody | RefusingSide::Clients);
        assert_eq!(as_client.is_ok(), accepted, "{case}, of a client: {as_client:?}");
        let as_server = client_accepts(&ca, &shown).await;
        let accepted = matches!(by, RefusingSide::Nobody | RefusingSide::Servers);
        assert_eq!(as_server.is_ok(), accepted, "{case}, of a server: {as_server:?}");
    }
    server_accepts(&ca, client_config().with_no_client_auth()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn certificate_that_expired_within_clock_skew_is_accepted() {
    let begin = now();
    let ca = Ca::default();
    let trust = fairmesh_identity::Trust::new(ca.authority.bundle()).unwrap();
    let own = ca.credentials("shop/cart", begin);
    let at = |offset: Duration| trust.verify(own.chain(), fairmesh_identity::Usage::Client, begin + offset);
    at(24 * HOUR + Duration::from_secs(299)).unwrap();
    assert_eq!(at(24 * HOUR + Duration::from_secs(301)), Err(fairmesh_identity::Refused::Expired));
    let early = trust.verify(own.chain(), fairmesh_identity::Usage::Client, begin - Duration::from_secs(301));
    assert_eq!(early, Err(fairmesh_identity::Refused::NotYetValid));
    trust.verify(own.chain(), fairmesh_identity::Usage::Client, begin - Duration::from_secs(299)).unwrap();
}
