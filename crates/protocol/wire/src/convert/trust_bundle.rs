//! The trust bundle, joined agents, and other identity records.

use bytes::Bytes;
use fairmesh_model::{
    BundleEndpoint, FederatedDomains, Invalid, JoinedAgent, JwtKey, MAX_CERTIFICATE, MAX_JWT_KEY,
    MAX_JWT_KEYS, MAX_RETIRED_ROOTS, MAX_ROOTS, MAX_TENANTS, Region, Revocation, Revocations,
    RevokedCertificates, Tenant, TokenIssuer, TokenIssuers, TrustBundle, TrustDomain,
};

use crate::v1;

impl From<TrustBundle> for v1::TrustBundle {
    fn from(bundle: TrustBundle) -> Self {
        Self {
            domain: bundle.domain.into(),
            roots: bundle.roots.into_iter().map(Bytes::from).collect(),
            retired: bundle.retired.into_iter().map(|digest| Bytes::copy_from_slice(&digest)).collect(),
            jwt_keys: bundle.jwt_keys.into_iter().map(v1::JwtKey::from).collect(),
        }
    }
}

impl TryFrom<v1::TrustBundle> for TrustBundle {
    type Error = Invalid;

    fn try_from(message: v1::TrustBundle) -> Result<Self, Invalid> {
        let domain = TrustDomain::try_from(message.domain).map_err(|e| e.within("domain"))?;
        if !(1..=MAX_ROOTS).contains(&message.roots.len()) {
            let problem = format!("has {} certificates", message.roots.len());
            return Err(Invalid::new("roots", problem, format!("give 1 to {MAX_ROOTS}")));
        }
        if let Some(i) = message.roots.iter().position(|root| !(1..=MAX_CERTIFICATE).contains(&root.len())) {
            let problem = format!("has {} bytes", message.roots[i].len());
            let hint = format!("a certificate has 1 to {MAX_CERTIFICATE}");
            return Err(Invalid::new(format!("roots[{i}]"), problem, hint));
        }
        if message.retired.len() > MAX_RETIRED_ROOTS {
            let problem = format!("has {} digests", message.retired.len());
            return Err(Invalid::new("retired", problem, format!("give at most {MAX_RETIRED_ROOTS}")));
        }
        let digest = |(i, digest): (usize, Bytes)| {
            let problem = || format!("has {} bytes", digest.len());
            let wrong = |_| Invalid::new(format!("retired[{i}]"), problem(), "a SHA-256 has 32");
            <[u8; 32]>::try_from(&digest[..]).map_err(wrong)
        };
        let retired = message.retired.into_iter().enumerate().map(digest).collect::<Result<_, _>>()?;
        if message.jwt_keys.len() > MAX_JWT_KEYS {
            let problem = format!("has {} keys", message.jwt_keys.len());
            return Err(Invalid::new("jwtKeys", problem, format!("give at most {MAX_JWT_KEYS}")));
        }
        let jwt_keys = message.jwt_keys.into_iter().map(JwtKey::try_from).collect::<Result<_, _>>()?;
        let roots = message.roots.into_iter().map(Vec::from).collect();
        Ok(Self { domain, roots, retired, jwt_keys })
    }
}

impl From<JwtKey> for v1::JwtKey {
    fn from(key: JwtKey) -> Self {
        Self { jwk: key.jwk.into(), expires_at: key.expires_at.unwrap_or_default() }
    }
}

impl TryFrom<v1::JwtKey> for JwtKey {
    type Error = Invalid;

    fn try_from(key: v1::JwtKey) -> Result<Self, Invalid> {
        if !(1..=MAX_JWT_KEY).contains(&key.jwk.len()) {
            let problem = format!("a key has {} bytes", key.jwk.len());
            return Err(Invalid::new("jwtKeys", problem, format!("a key has 1 to {MAX_JWT_KEY}")));
        }
        Ok(Self { jwk: key.jwk.into(), expires_at: Some(key.expires_at).filter(|time| *time > 0) })
    }
}

impl From<FederatedDomains> for v1::FederatedDomains {
    fn from(domains: FederatedDomains) -> Self {
        let endpoint = |one: BundleEndpoint| v1::BundleEndpoint { domain: one.domain.into(), url: one.url };
        Self {
            bundles: domains.bundles.into_iter().map(v1::TrustBundle::from).collect(),
            endpoints: domains.endpoints.into_iter().map(endpoint).collect(),
        }
    }
}

impl TryFrom<v1::FederatedDomains> for FederatedDomains {
    type Error = Invalid;

    fn try_from(message: v1::FederatedDomains) -> Result<Self, Invalid> {
        let read = |(i, one): (usize, v1::TrustBundle)| {
            TrustBundle::try_from(one).map_err(|e| e.within(format!("bundles[{i}]")))
        };
        let bundles = message.bundles.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let endpoint = |(i, one): (usize, v1::BundleEndpoint)| {
            let domain =
                TrustDomain::try_from(one.domain).map_err(|e| e.within(format!("endpoints[{i}]")))?;
            Ok(BundleEndpoint { domain, url: one.url })
        };
        let endpoints =
            message.endpoints.into_iter().enumerate().map(endpoint).collect::<Result<_, Invalid>>()?;
        let domains = Self { bundles, endpoints };
        domains.validate()?;
        Ok(domains)
    }
}

impl From<TokenIssuers> for v1::TokenIssuers {
    fn from(all: TokenIssuers) -> Self {
        let issuer = |one: TokenIssuer| v1::TokenIssuer {
            issuer: one.issuer,
            url: one.url.unwrap_or_default(),
            keys: one.keys.into(),
        };
        Self { issuers: all.issuers.into_iter().map(issuer).collect() }
    }
}

impl TryFrom<v1::TokenIssuers> for TokenIssuers {
    type Error = Invalid;

    fn try_from(message: v1::TokenIssuers) -> Result<Self, Invalid> {
        let issuer = |one: v1::TokenIssuer| TokenIssuer {
            issuer: one.issuer,
            url: Some(one.url).filter(|url| !url.is_empty()),
            keys: one.keys.into(),
        };
        let all = Self { issuers: message.issuers.into_iter().map(issuer).collect() };
        all.validate()?;
        Ok(all)
    }
}

impl From<JoinedAgent> for v1::JoinedAgent {
    fn from(agent: JoinedAgent) -> Self {
        Self {
            tenants: agent.tenants.into_iter().map(String::from).collect(),
            joined: agent.joined,
            region: agent.region.map(String::from).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::JoinedAgent> for JoinedAgent {
    type Error = Invalid;

    fn try_from(message: v1::JoinedAgent) -> Result<Self, Invalid> {
        if message.tenants.len() > MAX_TENANTS {
            let problem = format!("has {} names", message.tenants.len());
            return Err(Invalid::new("tenants", problem, format!("give at most {MAX_TENANTS}")));
        }
        let tenants = message.tenants.into_iter().map(Tenant::try_from).collect::<Result<_, _>>();
        let region = Some(message.region).filter(|region| !region.is_empty()).map(Region::try_from);
        Ok(Self {
            tenants: tenants.map_err(|e| e.within("tenants"))?,
            joined: message.joined,
            region: region.transpose().map_err(|e| e.within("region"))?,
        })
    }
}

impl From<Revocations> for v1::Revocations {
    fn from(revocations: Revocations) -> Self {
        Self { entries: revocations.entries.into_iter().map(v1::Revocation::from).collect() }
    }
}

impl TryFrom<v1::Revocations> for Revocations {
    type Error = Invalid;

    fn try_from(message: v1::Revocations) -> Result<Self, Invalid> {
        let read = |(i, one): (usize, v1::Revocation)| {
            Revocation::try_from(one).map_err(|e| e.within(format!("entries[{i}]")))
        };
        let entries = message.entries.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let revocations = Self { entries };
        revocations.validate()?;
        Ok(revocations)
    }
}

impl From<Revocation> for v1::Revocation {
    fn from(one: Revocation) -> Self {
        let (serial, issued_before) = match one.certificates {
            RevokedCertificates::All => (Vec::new(), 0),
            RevokedCertificates::Serial(serial) => (serial, 0),
            RevokedCertificates::IssuedBefore(time) => (Vec::new(), time),
        };
        Self { path: one.path.to_string(), serial: serial.into(), issued_before, at: one.at }
    }
}

impl TryFrom<v1::Revocation> for Revocation {
    type Error = Invalid;

    fn try_from(message: v1::Revocation) -> Result<Self, Invalid> {
        let certificates = match (message.serial.is_empty(), message.issued_before) {
            (true, 0) => RevokedCertificates::All,
            (true, time) => RevokedCertificates::IssuedBefore(time),
            (false, 0) => RevokedCertificates::Serial(message.serial.into()),
            (false, _) => {
                let problem = "has a serial number and a time";
                return Err(Invalid::new("serial", problem, "give one of them, or none for the identity"));
            }
        };
        Ok(Self { path: message.path.parse()?, certificates, at: message.at })
    }
}
