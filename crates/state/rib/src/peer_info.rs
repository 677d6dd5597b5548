use fairmesh_model::{Identity, Invalid, MAX_ROOTS, MeshRole, Region, SpiffePath};
use fairmesh_wire::{transport::Address, v1};

/// Maximum number of addresses stored per watcher.
const MAX_ADDRESSES: usize = 8;
/// Maximum length of a stored version, in characters.
const MAX_VERSION: usize = 64;

/// Description of a watcher. Operators decide by it whether all agents trust a new root, their commands connect to the
/// addresses of replicas, and a control plane refuses a second agent of a name by its region: so a watcher can only
/// describe itself as what its certificate proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The kind of process.
    pub kind: PeerKind,
    /// Region of the process.
    pub region: Option<Region>,
    /// Addresses of admin pages that list the watchers of the process itself.
    pub addresses: Vec<Address>,
    /// Release of the process; `None` for releases that do not send it.
    pub version: Option<String>,
    /// SHA-256 of each trusted root of the trust domain. Sent by agents that have a certificate.
    pub roots: Vec<[u8; 32]>,
}

/// Processes that serve all or a part of the routing information base to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// The agent of a machine.
    Agent,
    /// A replica.
    Replica,
}

impl PeerInfo {
    /// Whether a peer with this identity may be what it describes. Peers without a certificate are processes beside this
    /// one, or of a mesh without a trust domain, which can tell no process from another.
    pub(crate) fn may_be_of(&self, identity: &Identity) -> bool {
        let role = match self.kind {
            PeerKind::Agent => MeshRole::Agent,
            PeerKind::Replica => MeshRole::Replica,
        };
        match identity {
            Identity::Anonymous | Identity::Local { .. } => true,
            Identity::Spiffe(id) => matches!(&id.path, SpiffePath::Mesh(own, _) if *own == role),
            Identity::Federated(_) => false,
        }
    }
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
            roots: info.roots.iter().map(|root| root.to_vec().into()).collect(),
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
        // An address that cannot be parsed has a newer form, and is of no use here.
        let addresses = message.addresses.iter().take(MAX_ADDRESSES);
        let addresses = addresses.filter_map(|address| address.parse().ok()).collect();
        // Commands print it in a terminal.
        let version = message.version.chars().filter(char::is_ascii_graphic).take(MAX_VERSION).collect();
        let roots = message.roots.iter().take(MAX_ROOTS);
        let roots = roots.filter_map(|root| root.as_ref().try_into().ok()).collect();
        Ok(Self {
            kind,
            region,
            addresses,
            version: Some(version).filter(|version: &String| !version.is_empty()),
            roots,
        })
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::SpiffeId;

    use super::*;

    #[test]
    fn peer_describes_itself_only_as_its_certificate_proves() {
        let id = |path: &str| -> SpiffeId { format!("spiffe://prod/{path}").parse().unwrap() };
        let info =
            |kind| PeerInfo { kind, region: None, addresses: Vec::new(), version: None, roots: Vec::new() };
        let (agent, replica) = (info(PeerKind::Agent), info(PeerKind::Replica));
        let cases = [
            ("fairmesh/agent/web-1", (true, false)),
            ("fairmesh/replica/rib-1.eu", (false, true)),
            ("fairmesh/operator/web-1.ann", (false, false)),
            ("shop/cart", (false, false)),
        ];
        for (path, expected) in cases {
            let identity = Identity::Spiffe(id(path));
            assert_eq!((agent.may_be_of(&identity), replica.may_be_of(&identity)), expected, "{path}");
        }
        let partner = Identity::Federated(id("fairmesh/agent/web-1"));
        assert!(!agent.may_be_of(&partner) && agent.may_be_of(&Identity::Anonymous));
    }

    #[test]
    fn watcher_info_round_trips_and_bounds_its_addresses() {
        let region = Some(Region::new("eu").unwrap());
        let addresses = vec!["10.0.0.1:7403".parse().unwrap()];
        let (version, roots) = (Some("0.1.0".into()), vec![[7; 32]]);
        let sent = PeerInfo { kind: PeerKind::Replica, region, addresses, version, roots };
        assert_eq!(PeerInfo::try_from(v1::PeerInfo::from(&sent)).unwrap(), sent);
        let mut message = v1::PeerInfo::from(&sent);
        message.addresses = vec!["unix:/x".into(); 1000];
        message.roots = vec![vec![1; 32].into(); 1000];
        message.roots[0] = vec![1].into();
        message.version = "1.0\u{1b}]0;other\u{7}\r\u{202e}-rc".into();
        let read = PeerInfo::try_from(message).unwrap();
        assert_eq!(read.version.as_deref(), Some("1.0]0;other-rc"), "without control characters");
        assert_eq!((read.addresses.len(), read.roots.len()), (MAX_ADDRESSES, MAX_ROOTS - 1));
        assert!(PeerInfo::try_from(v1::PeerInfo::default()).is_err());
    }
}
