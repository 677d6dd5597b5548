//! The trust bundle, and the agents that joined.

use bytes::Bytes;
use fairmesh_model::{
    Invalid, JoinedAgent, MAX_CERTIFICATE, MAX_ROOTS, MAX_TENANTS, Region, Tenant, TrustBundle, TrustDomain,
};

use crate::v1;

impl From<TrustBundle> for v1::TrustBundle {
    fn from(bundle: TrustBundle) -> Self {
        Self { domain: bundle.domain.into(), roots: bundle.roots.into_iter().map(Bytes::from).collect() }
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
        Ok(Self { domain, roots: message.roots.into_iter().map(Vec::from).collect() })
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
