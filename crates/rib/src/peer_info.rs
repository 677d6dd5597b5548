use fairmesh_model::{Invalid, Region};
use fairmesh_wire::{transport::Address, v1};

/// The most addresses that are kept of a watcher.
const MAX_ADDRESSES: usize = 8;
/// The most characters that are kept of a version.
const MAX_VERSION: usize = 64;

/// Description of a watcher, for operators. It influences no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The kind of process.
    pub kind: PeerKind,
    /// Its region.
    pub region: Option<Region>,
    /// The addresses that list its own watchers.
    pub addresses: Vec<Address>,
    /// Its release; `None` of releases that do not say.
    pub version: Option<String>,
}

/// The processes that hold a part or all of the routing information base for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// A machine's agent.
    Agent,
    /// A replica.
    Replica,
}

impl From<&PeerInfo> for v1::PeerInfo {
    fn from(info: &PeerInfo) -> Self {
        let kind = match info.kind {
            PeerKind::Agent => v1::peer_info::Kind::Agent,
            PeerKind::Replica => v1::peer_info::Kind::Replica,
        };
        Self {
            kind: kind.into(),
            region: info.region.as_ref().map(ToString::to_string).unwrap_or_default(),
            addresses: info.addresses.iter().map(ToString::to_string).collect(),
            version: info.version.clone().unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::PeerInfo> for PeerInfo {
    type Error = Invalid;

    fn try_from(message: v1::PeerInfo) -> Result<Self, Invalid> {
        let kind = match message.kind() {
            v1::peer_info::Kind::Agent => PeerKind::Agent,
            v1::peer_info::Kind::Replica => PeerKind::Replica,
            v1::peer_info::Kind::Unspecified => {
                return Err(Invalid::new("kind", "is unknown to this release", "send AGENT or REPLICA"));
            }
        };
        let region = Some(message.region).filter(|region| !region.is_empty());
        let region = region.map(Region::new).transpose().map_err(|e| e.within("region"))?;
        // An unreadable address has a newer form, and is of no use here.
        let addresses = message.addresses.iter().take(MAX_ADDRESSES);
        let addresses = addresses.filter_map(|address| address.parse().ok()).collect();
        let version = message.version.chars().take(MAX_VERSION).collect();
        Ok(Self {
            kind,
            region,
            addresses,
            version: Some(version).filter(|version: &String| !version.is_empty()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_info_round_trips_and_bounds_its_addresses() {
        let region = Some(Region::new("eu").unwrap());
        let addresses = vec!["10.0.0.1:7403".parse().unwrap()];
        let sent = PeerInfo { kind: PeerKind::Replica, region, addresses, version: Some("0.1.0".into()) };
        assert_eq!(PeerInfo::try_from(v1::PeerInfo::from(&sent)).unwrap(), sent);
        let mut message = v1::PeerInfo::from(&sent);
        message.addresses = vec!["unix:/x".into(); 1000];
        assert_eq!(PeerInfo::try_from(message).unwrap().addresses.len(), MAX_ADDRESSES);
        assert!(PeerInfo::try_from(v1::PeerInfo::default()).is_err());
    }
}
