//! Tests of TLS to servers outside the mesh.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fairmesh_identity::WebRoots;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer},
    },
};

fn certificate(name: &str) -> (KeyPair, CertificateDer<'static>) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (key, certificate.der().clone())
}

fn write(path: &Path, certificate: &CertificateDer<'_>) {
    let body = BASE64_STANDARD.encode(certificate);
    fs::write(path, format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")).unwrap();
}

async fn serve(key: KeyPair, certificate: CertificateDer<'static>) -> SocketAddr {
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, acceptor) = (listener.local_addr().unwrap(), TlsAcceptor::from(Arc::new(config)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = acceptor.accept(stream).await;
        }
    });
    address
}

#[tokio::test]
async fn web_server_is_verified_with_roots_from_file() {
    let folder = tempfile::tempdir().unwrap();
    let [own, other, empty] = ["own", "other", "empty"].map(|name| folder.path().join(name));
    let (key, certified) = certificate("idp.example");
    write(&own, &certified);
    write(&other, &certificate("idp.example").1);
    fs::write(&empty, "no certificate").unwrap();
    let address = serve(key, certified).await;
    let connect = async |roots: &Path, host: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        WebRoots::read(Some(roots)).unwrap().connect(host, stream).await.map(drop)
    };
    connect(&own, "idp.example").await.unwrap();
    for (roots, host) in
        [(&own, "evil.example"), (&own, "127.0.0.1"), (&own, "not a host"), (&other, "idp.example")]
    {
        assert!(connect(roots, host).await.is_err(), "{host}");
    }
    let error = WebRoots::read(Some(&empty)).unwrap_err().to_string();
    assert!(error.contains("has no certificate of an authority"), "{error}");
    assert!(WebRoots::read(Some(&folder.path().join("absent"))).is_err());
}
