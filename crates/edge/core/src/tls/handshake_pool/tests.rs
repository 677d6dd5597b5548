use std::{
    future::poll_fn,
    sync::{Mutex, atomic::Ordering::Relaxed, mpsc},
    thread::{self, ThreadId},
};

use fairmesh_identity::Authority;
use fairmesh_test_support::AnyServer;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, Error, SignatureAlgorithm, SignatureScheme,
        crypto::{
            CryptoProvider, SupportedKxGroup,
            aws_lc_rs::{
                default_provider,
                kx_group::{SECP256R1, X25519},
                sign::any_ecdsa_type,
            },
        },
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey},
        version::TLS13,
    },
};

use super::*;

/// The threads on which a key signed.
type Threads = Arc<Mutex<Vec<ThreadId>>>;

/// A key that records the thread of each signature.
#[derive(Debug)]
struct NotingKey(Arc<dyn SigningKey>, Threads);

#[derive(Debug)]
struct NotingSigner(Box<dyn Signer>, Threads);

impl SigningKey for NotingKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.0.choose_scheme(offered)?;
        Some(Box::new(NotingSigner(signer, Arc::clone(&self.1))))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl Signer for NotingSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.1.lock().unwrap().push(thread::current().id());
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}

fn provider(kx_groups: Vec<&'static dyn SupportedKxGroup>) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { kx_groups, ..default_provider() })
}

/// A server configuration with some certificate and key.
fn server(kx_groups: Vec<&'static dyn SupportedKxGroup>, threads: &Threads) -> Arc<ServerConfig> {
    let folder = tempfile::tempdir().unwrap();
    Authority::open(folder.path(), &"prod".parse().unwrap(), Duration::from_secs(1 << 30)).unwrap();
    let file = folder.path().join("issuer.key");
    let key = any_ecdsa_type(&PrivateKeyDer::from_pem_file(&file).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(&file).unwrap()];
    let noting = Arc::new(NotingKey(key, Arc::clone(threads)));
    let resolver = SingleCertAndKey::from(CertifiedKey::new(chain, noting));
    let builder = ServerConfig::builder_with_provider(provider(kx_groups));
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
    Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver)))
}

/// A client whose key share is X25519.
fn client() -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(provider(vec![X25519, SECP256R1]));
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
    let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer));
    Arc::new(config.with_no_client_auth()).into()
}

#[tokio::test]
async fn event_loop_makes_no_tls_signature_even_after_second_client_hello() {
    let (pool, refused) = (HandshakePool::new(Duration::from_secs(10)), AtomicU64::new(0));
    for (kx_groups, kind) in
        [(vec![X25519], HandshakeKind::Full), (vec![SECP256R1], HandshakeKind::FullWithHelloRetryRequest)]
    {
        let threads = Threads::default();
        let config = server(kx_groups, &threads);
        let (near, far) = tokio::io::duplex(1 << 14);
        let connect = client().connect("server".try_into().unwrap(), far);
        let (accepted, connected) = tokio::join!(pool.complete(near, config, &refused), connect);
        connected.unwrap();
        assert_eq!(accepted.unwrap().get_ref().1.handshake_kind(), Some(kind));
        let threads = threads.lock().unwrap();
        assert!(threads.len() == 1 && !threads.contains(&thread::current().id()), "{kind:?}: {threads:?}");
    }
    assert_eq!(refused.load(Relaxed), 0);
}

#[tokio::test]
async fn tls_handshakes_block_only_pool_threads_and_are_refused_if_all_busy() {
    let (pool, refused) = (HandshakePool::new(Duration::from_millis(20)), AtomicU64::new(0));
    let (sign, signs) = mpsc::channel::<()>();
    let signs = Mutex::new(signs);
    let signs = Arc::new(signs);
    let began = Arc::new(Semaphore::new(0));
    let blocked = || {
        let (signs, began) = (Arc::clone(&signs), Arc::clone(&began));
        poll_fn(move |_| {
            began.add_permits(1);
            let _ = signs.lock().unwrap().recv();
            Poll::Ready(Ok(1))
        })
    };
    let all =
        futures_util::future::join_all((0..MAX_THREADS).map(|_| pool.poll_on_threads(blocked(), &refused)));
    let other = async {
        let _ = began.acquire_many(u32::try_from(MAX_THREADS).unwrap()).await.unwrap();
        let error = pool.poll_on_threads(poll_fn(|_| Poll::Ready(Ok(2))), &refused).await.unwrap_err();
        assert_eq!((error.kind(), refused.load(Relaxed)), (io::ErrorKind::WouldBlock, 1));
        drop(sign);
    };
    let (all, ()) = tokio::join!(all, other);
    assert!(all.iter().all(Result::is_ok));
    let mut steps = 0;
    let in_steps = poll_fn(move |context| {
        steps += 1;
        if steps < 3 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(steps))
    });
    assert_eq!(pool.poll_on_threads(in_steps, &refused).await.unwrap(), 3);
}
