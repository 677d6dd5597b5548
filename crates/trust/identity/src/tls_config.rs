//! rustls configurations that verify SPIFFE ids.

use std::{collections::BTreeSet, fmt, sync::Arc};

use fairmesh_model::{MeshRole, ServiceName, SpiffeId, SpiffePath};
use fairmesh_wire::transport::ExpectedPeer;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    version::TLS13,
};

use crate::{
    Clock, Credentials, IdentityError, JoinToken, Refused, Trust, Usage,
    chain_verification::{self, algorithms},
    federation::Federation,
};

/// The peer that a client expects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expected {
    Service(ServiceName),
    /// Exactly this id, which may belong to any trusted domain.
    Id(SpiffeId),
    Mesh,
    Upstream,
    KeyServer,
    Gateway,
    /// A certificate for this host name or address, without an identity.
    Host(String),
}

impl From<ExpectedPeer<'_>> for Expected {
    fn from(peer: ExpectedPeer<'_>) -> Self {
        match peer {
            ExpectedPeer::Service(service) => Self::Service(service.clone()),
            ExpectedPeer::Id(id) => Self::Id(id.clone()),
            ExpectedPeer::Mesh => Self::Mesh,
            ExpectedPeer::Upstream => Self::Upstream,
            ExpectedPeer::KeyServer => Self::KeyServer,
            ExpectedPeer::Gateway => Self::Gateway,
            ExpectedPeer::Host(host) => Self::Host(host.to_owned()),
        }
    }
}

impl Expected {
    fn check(&self, found: SpiffeId) -> Result<(), Refused> {
        let fits = match (self, &found.path) {
            // Processes of the mesh serve no calls, even if a record names one as a server.
            (Self::Id(expected), SpiffePath::Service(_)) => *expected == found,
            (Self::Service(service), SpiffePath::Service(found)) => service == found,
            (Self::Mesh, SpiffePath::Mesh(role, _)) => {
                !matches!(role, MeshRole::Operator | MeshRole::KeyServer | MeshRole::Gateway)
            }
            (Self::Upstream, SpiffePath::Mesh(role, _)) => {
                matches!(role, MeshRole::Control | MeshRole::Replica)
            }
            (Self::KeyServer, SpiffePath::Mesh(role, _)) => *role == MeshRole::KeyServer,
            (Self::Gateway, SpiffePath::Mesh(role, _)) => *role == MeshRole::Gateway,
            _ => false,
        };
        if fits { Ok(()) } else { Err(Refused::Unexpected { found, expected: self.to_string() }) }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Id(id) => id.fmt(f),
            Self::Mesh => f.write_str("a process of the mesh"),
            Self::Upstream => f.write_str("a control plane or a replica"),
            Self::KeyServer => f.write_str("a key server"),
            Self::Gateway => f.write_str("a gateway"),
            Self::Host(host) => write!(f, "a control plane at {host}"),
        }
    }
}

/// Verifies peers by their certificate alone. The name and address of the connection do not matter.
#[derive(Debug)]
struct Verifier {
    trust: Trust,
    clock: Arc<dyn Clock>,
    /// The server that a client expects. `None` for a server, which accepts any client of the domain.
    expected: Option<Expected>,
    /// Whether clients without a certificate are accepted too.
    with_joining: bool,
    /// Federated domains whose peers are verified too. `None` accepts only this process's own domain.
    federation: Option<Federation>,
    /// Accepted clients of federated domains. Other clients are refused with an alert. If the connection were closed
    /// instead, a client would have to assume that its request may have been read.
    named: Arc<BTreeSet<SpiffeId>>,
}

impl Verifier {
    fn verify(&self, chain: &[&CertificateDer<'_>], usage: Usage) -> Result<(), Error> {
        let chain: Vec<_> = chain.iter().map(|one| CertificateDer::from(one.as_ref())).collect();
        if let Some(Expected::Host(host)) = &self.expected {
            return self.trust.verify_host(&chain, host, self.clock.now()).map_err(as_tls_error);
        }
        let verified = match self.foreign_trust(&chain, usage) {
            Some(foreign) => foreign.verify(&chain, usage, self.clock.now()).and_then(|found| {
                match usage == Usage::Server || self.named.contains(&found) {
                    true => Ok(found),
                    false => Err(Refused::NotNamed(found)),
                }
            }),
            None => self.trust.verify(&chain, usage, self.clock.now()),
        };
        let checked = verified.and_then(|found| match &self.expected {
            // Within the domain, a service must prove its own identity. No record can replace it.
            Some(Expected::Id(id)) if id.domain == *self.trust.domain() => {
                Err(Refused::OwnDomain(id.clone()))
            }
            Some(expected) => expected.check(found),
            None => Ok(()),
        });
        checked.map_err(as_tls_error)
    }

    /// Returns the verifier of the federated domain that a certificate names. The roots of a domain vouch only for
    /// that domain.
    fn foreign_trust(&self, chain: &[CertificateDer<'_>], usage: Usage) -> Option<Trust> {
        let federation = self.federation.as_ref()?;
        let domain = chain_verification::id_of(chain.first()?, usage).ok()?.domain;
        if domain == *self.trust.domain() { None } else { federation.find(&domain) }
    }
}

fn as_tls_error(refused: Refused) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
}

/// Verifies signatures of handshakes. It is the same for servers and clients: only TLS 1.3, with the algorithms of
/// this crate. A macro, because the two rustls traits have the same methods but no common supertrait.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not spoken here".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &algorithms())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            algorithms().supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).collect();
        self.verify(&chain, Usage::Server).map(|()| ServerCertVerified::assertion())
    }

    tls13_signatures!();
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.with_joining
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).collect();
        self.verify(&chain, Usage::Client).map(|()| ClientCertVerified::assertion())
    }

    tls13_signatures!();
}

/// Verifies a server by the digest of its root.
#[derive(Debug)]
struct PinnedVerifier {
    token: JoinToken,
    clock: Arc<dyn Clock>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
        let verified = Trust::verify_pinned(&chain, &self.token, self.clock.now());
        verified.and_then(|found| Expected::Upstream.check(found)).map_err(as_tls_error)?;
        Ok(ServerCertVerified::assertion())
    }

    tls13_signatures!();
}

/// Returns the TLS provider for all connections. Its hybrid key exchange protects recorded traffic against future
/// quantum computers. Peers without support use X25519, whose key share is sent along.
pub fn crypto_provider() -> CryptoProvider {
    use aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    // The list is explicit, so that Cargo features of other crates cannot change it.
    let kx_groups = vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1];
    CryptoProvider { kx_groups, ..aws_lc_rs::default_provider() }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto_provider())
}

/// Returns the configuration of a client that expects this peer. Each expected peer has a separate session store, so
/// sessions are resumed only with a server that proved this identity.
pub(crate) fn client(
    own: &Credentials,
    expected: Expected,
    (clock, federation): (&Arc<dyn Clock>, &Federation),
) -> Result<Arc<ClientConfig>, IdentityError> {
    let (trust, clock) = (own.trust.clone(), Arc::clone(clock));
    // Only clients that expect an id of another domain verify with the roots of that domain.
    let federation = matches!(expected, Expected::Id(_)).then(|| federation.clone());
    let verifier = Arc::new(Verifier {
        trust,
        clock,
        expected: Some(expected),
        with_joining: false,
        federation,
        named: Arc::default(),
    });
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let config = config.map_err(IdentityError::crypto)?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier);
    let config = config.with_client_auth_cert(own.chain.clone(), own.key.rustls());
    config.map(Arc::new).map_err(IdentityError::crypto)
}

/// Returns the configuration of a client without a certificate that expects a process of the mesh.
pub(crate) fn one_way(trust: Trust, clock: &Arc<dyn Clock>) -> Result<Arc<ClientConfig>, IdentityError> {
    let expected = Some(Expected::Mesh);
    let clock = Arc::clone(clock);
    let (federation, named) = (None, Arc::default());
    let verifier = Arc::new(Verifier { trust, clock, expected, with_joining: false, federation, named });
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let config =
        config.map_err(IdentityError::crypto)?.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(config.with_no_client_auth()))
}

/// Returns the configuration of a server with a host certificate. Web clients need no certificate; members of the
/// mesh may send one.
pub(crate) fn of_host(
    (key, chain): (PrivateKeyDer<'static>, Vec<CertificateDer<'static>>),
    trust: Trust,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let clock = Arc::clone(clock);
    let (federation, named) = (None, Arc::default());
    let verifier = Verifier { trust, clock, expected: None, with_joining: true, federation, named };
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let config = config.map_err(IdentityError::crypto)?.with_client_cert_verifier(Arc::new(verifier));
    config.with_single_cert(chain, key).map(Arc::new).map_err(IdentityError::crypto)
}

/// Returns the configuration of a client without a certificate that joins with a token. The server sends its root,
/// and must prove to be a process of the mesh under the root that the token pins.
pub(crate) fn joining(token: &JoinToken, clock: &Arc<dyn Clock>) -> Result<Arc<ClientConfig>, IdentityError> {
    let verifier = Arc::new(PinnedVerifier { token: token.clone(), clock: Arc::clone(clock) });
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let config =
        config.map_err(IdentityError::crypto)?.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(config.with_no_client_auth()))
}

/// Clients that a server accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AcceptedClients<'a> {
    /// Clients with any identity of the domain.
    Domain,
    /// Also clients without an identity. The server sends them its root, because they know only its digest.
    DomainAndJoining,
    /// Also the given clients of federated domains. They are checked again after the handshake, because a resumed
    /// session verifies nothing.
    DomainAndFederated(&'a Federation, &'a Arc<BTreeSet<SpiffeId>>),
}

/// Returns the configuration of a server.
pub(crate) fn server(
    own: &Credentials,
    clock: &Arc<dyn Clock>,
    clients: AcceptedClients<'_>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let with_joining = matches!(clients, AcceptedClients::DomainAndJoining);
    let (federation, named) = match clients {
        AcceptedClients::DomainAndFederated(federation, named) => {
            (Some(federation.clone()), Arc::clone(named))
        }
        AcceptedClients::Domain | AcceptedClients::DomainAndJoining => (None, Arc::default()),
    };
    let (trust, clock) = (own.trust.clone(), Arc::clone(clock));
    let mut chain = own.chain.clone();
    if with_joining {
        chain.extend(trust.root_of(&own.chain));
    }
    let verifier = Arc::new(Verifier { trust, clock, expected: None, with_joining, federation, named });
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let config = config.map_err(IdentityError::crypto)?.with_client_cert_verifier(verifier);
    let config = config.with_single_cert(chain, own.key.rustls());
    config.map(Arc::new).map_err(IdentityError::crypto)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{SpiffePath, TrustDomain};
    use tokio::io::duplex;
    use tokio_rustls::{TlsAcceptor, TlsConnector, rustls::NamedGroup};

    use super::*;
    use crate::{Authority, PrivateKey, SystemClock};

    /// Returns the key exchange group that two members negotiate. With `only`, the client offers just this group.
    async fn negotiated(only: Option<NamedGroup>) -> NamedGroup {
        let folder = tempfile::tempdir().unwrap();
        let (domain, clock): (_, Arc<dyn Clock>) = (TrustDomain::new("prod").unwrap(), Arc::new(SystemClock));
        let now = clock.now();
        let authority = Authority::open(&folder.path().join("ca"), &domain, now).unwrap();
        let credentials = |path: &str| {
            let key = PrivateKey::generate().unwrap();
            let id = path.parse::<SpiffePath>().unwrap().within(&domain);
            let issued = authority.issue(&key.signing_request().unwrap(), &id, now).unwrap();
            Credentials::new(key, issued.chain, authority.bundle(), now).unwrap()
        };
        let server = server(&credentials("shop/cart"), &clock, AcceptedClients::Domain).unwrap();
        let expected = Expected::Service("shop/cart".parse().unwrap());
        let own = credentials("shop/web");
        let mut config = (*client(&own, expected, (&clock, &Federation::default())).unwrap()).clone();
        if let Some(only) = only {
            let mut provider = crypto_provider();
            provider.kx_groups.retain(|group| group.name() == only);
            let verifier = Verifier {
                trust: own.trust.clone(),
                clock: Arc::clone(&clock),
                expected: None,
                with_joining: false,
                federation: None,
                named: Arc::default(),
            };
            let builder = ClientConfig::builder_with_provider(Arc::new(provider));
            let builder = builder.with_protocol_versions(&[&TLS13]).unwrap().dangerous();
            let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));
            config = builder.with_client_auth_cert(own.chain.clone(), own.key.rustls()).unwrap();
        }
        let (near, far) = duplex(64 * 1024);
        let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        let connect = TlsConnector::from(Arc::new(config)).connect(name, near);
        let (dialled, accepted) = tokio::join!(connect, TlsAcceptor::from(server).accept(far));
        let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
        let group = accepted.get_ref().1.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(dialled.get_ref().1.negotiated_key_exchange_group().unwrap().name(), group);
        group
    }

    #[tokio::test]
    async fn tls_key_exchange_is_hybrid_if_both_sides_support_it() {
        assert_eq!(negotiated(None).await, NamedGroup::X25519MLKEM768);
        assert_eq!(negotiated(Some(NamedGroup::X25519)).await, NamedGroup::X25519);
        assert_eq!(negotiated(Some(NamedGroup::secp256r1)).await, NamedGroup::secp256r1);
    }
}
