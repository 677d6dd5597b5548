//! Generators for records of the trust domain.

use fairmesh_model::{
    BundleEndpoint, FederatedDomains, JoinedAgent, JwtKey, MAX_CERTIFICATE, MAX_JWT_KEY, MAX_JWT_KEYS,
    MAX_RETIRED_ROOTS, MAX_ROOTS, MAX_SERIAL, Revocation, Revocations, RevokedCertificates, SpiffePath,
    TokenIssuer, TokenIssuers, TrustBundle,
};
use proptest::{collection, option, prelude::*};

use super::{name, service_name};

pub(super) fn trust_bundle() -> impl Strategy<Value = TrustBundle> {
    let root = collection::vec(any::<u8>(), 1..MAX_CERTIFICATE);
    let retired = collection::vec(any::<[u8; 32]>(), 0..=MAX_RETIRED_ROOTS);
    let jwk = collection::vec(any::<u8>(), 1..=MAX_JWT_KEY);
    let key = (jwk, option::of(1..u64::MAX)).prop_map(|(jwk, expires_at)| JwtKey { jwk, expires_at });
    let keys = collection::vec(key, 0..=MAX_JWT_KEYS);
    (name(), collection::vec(root, 1..=MAX_ROOTS), retired, keys)
        .prop_map(|(domain, roots, retired, jwt_keys)| TrustBundle { domain, roots, retired, jwt_keys })
}

pub(super) fn federated_domains() -> impl Strategy<Value = FederatedDomains> {
    (collection::vec(trust_bundle(), 0..4), any::<u8>()).prop_map(|(mut bundles, served)| {
        bundles.sort_by(|a, b| a.domain.cmp(&b.domain));
        bundles.dedup_by(|a, b| a.domain == b.domain);
        let served = bundles.iter().take(usize::from(served) % 4);
        let endpoint =
            |one: &TrustBundle| BundleEndpoint { domain: one.domain.clone(), url: "https://partner/".into() };
        let endpoints = served.map(endpoint).collect();
        FederatedDomains { bundles, endpoints }
    })
}

pub(super) fn revocations() -> impl Strategy<Value = Revocations> {
    let certificates = prop_oneof![
        Just(RevokedCertificates::All),
        collection::vec(1..=u8::MAX, 1..=MAX_SERIAL).prop_map(RevokedCertificates::Serial),
        (1..u64::MAX).prop_map(RevokedCertificates::IssuedBefore),
    ];
    let one = (service_name(), certificates, any::<u64>()).prop_map(|(service, certificates, at)| {
        Revocation { path: SpiffePath::Service(service), certificates, at }
    });
    collection::vec(one, 0..5).prop_map(|entries| Revocations { entries })
}

pub(super) fn joined_agent() -> impl Strategy<Value = JoinedAgent> {
    (collection::vec(name(), 0..5), any::<u64>(), option::of(name()))
        .prop_map(|(tenants, joined, region)| JoinedAgent { tenants, joined, region })
}

pub(super) fn token_issuers() -> impl Strategy<Value = TokenIssuers> {
    let one = (option::of("https://[a-z]{1,8}"), collection::vec(any::<u8>(), 1..20));
    collection::btree_map("[a-z]{1,8}", one, 0..3).prop_map(|all| TokenIssuers {
        issuers: all.into_iter().map(|(issuer, (url, keys))| TokenIssuer { issuer, url, keys }).collect(),
    })
}
