use fairmesh_model::{Invalid, Region};
use fairmesh_wire::{transport::Address, v1};

/// The most addresses that a watcher is heard of.
const MAX_ADDRESSES: usize = 8;

/// What a watcher says of itself, for people. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub region: Option<Region>,
    /// Where it can be asked who watches it in turn.
    pub addresses: Vec<Address>,
}

/// What holds a part or all of the routing information base for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A machine's agent.
    Agent,
    /// A replica.
    Replica,
}

impl From<&About> for v1::About {
    fn from(about: &About) -> Self {
        let kind = match about.kind {
            Kind::Agent => v1::about::Kind::Agent,
            Kind::Replica => v1::about::Kind::Replica,
        };
        Self {
            kind: kind.into(),
            region: about.region.as_ref().map(ToString::to_string).unwrap_or_default(),
            addresses: about.addresses.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<v1::About> for About {
    type Error = Invalid;

    fn try_from(message: v1::About) -> Result<Self, Invalid> {
        let kind = match message.kind() {
            v1::about::Kind::Agent => Kind::Agent,
            v1::about::Kind::Replica => Kind::Replica,
            v1::about::Kind::Unspecified => {
                return Err(Invalid::new("kind", "is not known here", "send AGENT or REPLICA"));
            }
        };
        let region = Some(message.region).filter(|region| !region.is_empty());
        let region = region.map(Region::new).transpose().map_err(|e| e.within("region"))?;
        // What cannot be read is an address of a newer form, and of no use here.
        let addresses = message.addresses.iter().take(MAX_ADDRESSES);
        let addresses = addresses.filter_map(|address| address.parse().ok()).collect();
        Ok(Self { kind, region, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_within_bounds() {
        let region = Some(Region::new("eu").unwrap());
        let said = About { kind: Kind::Replica, region, addresses: vec!["10.0.0.1:7403".parse().unwrap()] };
        assert_eq!(About::try_from(v1::About::from(&said)).unwrap(), said);
        let mut message = v1::About::from(&said);
        message.addresses = vec!["unix:/x".into(); 1000];
        assert_eq!(About::try_from(message).unwrap().addresses.len(), MAX_ADDRESSES);
        assert!(About::try_from(v1::About::default()).is_err());
    }
}
