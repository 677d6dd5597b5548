//! What a process reads of peers before it knows who they are: join tokens, JWT-SVIDs, certificates, statements of calls, and the roots
//! of other trust domains as a web server has them. None of them panics, and nothing is accepted whose signer no root vouches for.

use std::{sync::OnceLock, time::Duration};

use fairmesh_identity::{
    BundleHints, CertificateInfo, JoinToken, Trust, Usage, call_statement, read_bundle_document,
    write_bundle_document,
};
use fairmesh_model::{MAX_ROOTS, SpiffeId, TrustBundle};
use fairmesh_tokens::{KeySet, stated_subject, verify_svid, write_jwks};
use fairmesh_wire::transport::StatedCall;

/// A time at which no certificate of the corpus has expired, since 1970.
const NOW: Duration = Duration::from_secs(1_795_000_000);

/// A trust domain of which no root is known.
fn trust() -> &'static Trust {
    static TRUST: OnceLock<Trust> = OnceLock::new();
    TRUST.get_or_init(|| {
        let domain = "prod".parse().expect("letters make a domain");
        Trust::new(TrustBundle::new(domain, Vec::new())).expect("no root is malformed")
    })
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        if let Ok(token) = text.parse::<JoinToken>() {
            assert_eq!(token.reveal(), text.trim(), "a token has one spelling");
        }
        if let Ok(id) = text.parse::<SpiffeId>() {
            assert_eq!(id.to_string(), text, "an id has one spelling");
        }
        let _ = stated_subject(text);
        assert!(verify_svid(text, &KeySet::of_keys([data]), "cart", NOW).is_err());
    }
    let _ = CertificateInfo::of(data);
    if let Ok(bundle) = read_bundle_document(trust().domain().clone(), data) {
        assert!((1..=MAX_ROOTS).contains(&bundle.roots.len()));
        if let Ok(document) = write_bundle_document(&bundle, 1) {
            let again = read_bundle_document(bundle.domain.clone(), &document);
            assert_eq!(again.as_ref(), Ok(&bundle));
        }
    }
    let _ = write_jwks([data]);
    let _ = BundleHints::of(data);
    let chain = [data.into()];
    for usage in [Usage::Client, Usage::Server] {
        assert!(trust().verify(&chain, usage, NOW).is_err());
    }
    let call = StatedCall { path: "/fairmesh.v1.Registry/Register", on_behalf_of: "", message: data };
    assert!(call_statement::verify(trust(), data, call, NOW).is_err());
}
